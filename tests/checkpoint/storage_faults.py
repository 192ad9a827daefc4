"""Storage that really fails, and recovers: kernel limits, permissions, mounts; and an object store with hiccups."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem

_NOBODY = 65534


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may grow beyond ``size`` bytes (``EFBIG``)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def not_permitted(folder: Path) -> Iterator[None]:
    """No file can be made under ``folder``: as nobody where we are root, whom no permission stops."""
    directories = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for directory in directories:
        directory.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        if user == 0:
            os.seteuid(0)
        for directory in directories:
            directory.chmod(0o755)


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """A file system of ``size`` bytes at ``folder``; the test is skipped where it cannot be mounted."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "penumbra-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """The file system of ``folder`` is full (``ENOSPC``)."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def mounted_read_only(folder: Path) -> Iterator[None]:
    """The file system of ``folder`` takes no writes (``EROFS``)."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)


class UnsteadyFileSystem(MemoryFileSystem):
    """An object store whose next ``failures`` puts fail with an error that passes."""

    protocol = "unsteady"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    failures: ClassVar[int] = 0
    puts: ClassVar[int] = 0

    def pipe_file(self, path: str, value: bytes, *rest: Any, **named: Any) -> None:
        UnsteadyFileSystem.puts += 1
        if UnsteadyFileSystem.failures:
            UnsteadyFileSystem.failures -= 1
            raise OSError(errno.EIO, "503 Slow Down")
        super().pipe_file(path, value, *rest, **named)


class StuckSink:
    """A file that takes nothing until ``gate`` is set: storage that hangs, in front of whatever is written next."""

    def __init__(self, error: Exception | None = None) -> None:
        self.gate = threading.Event()
        self._error = error

    def write(self, buffer: memoryview, count: int) -> None:
        assert self.gate.wait(60)
        if self._error is not None:
            raise self._error

    def close(self) -> tuple[int, str]:
        return 0, ""

    def discard(self) -> None:
        pass
