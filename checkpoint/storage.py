"""The few things a store does with a file system: durable on local ones, one put an object on others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from checkpoint.retry import RetryPolicy

_TEMPORARY = ".tmp"


class Storage:
    """Paths relative to one URL. Every call is tried again as ``retry`` says and raises our errors.

    Raises:
        FileNotFoundError: from calls that read, when nothing is there.
        StorageError: and its kinds, from all calls.
    """

    def __init__(self, url: str, retry: RetryPolicy, options: dict[str, Any] | None = None) -> None:
        self.url = url.rstrip("/")
        self.retry = retry
        fs, self.root = fsspec.url_to_fs(self.url, **(options or {}))
        self.fs: Any = fs
        self.is_local = isinstance(fs, LocalFileSystem)

    def path(self, *parts: str) -> str:
        """Full path, as the file system wants it."""
        return "/".join((self.root, *parts))

    def make_directory(self, *parts: str, exist_ok: bool) -> None:
        """Create a directory (its parents, too) so that it survives a power cut; nothing on object stores.

        Raises:
            FileExistsError: it is there, and ``exist_ok`` is false.
        """
        if not self.is_local:
            return
        path = self.path(*parts)
        if not exist_ok and os.path.isdir(path):
            raise FileExistsError(path)
        self.retry.call(lambda: _make_durable(path), "create the directory", path)

    def write(self, data: bytes, *parts: str) -> None:
        """Write a whole small file: a reader finds all of it or nothing."""
        path = self.path(*parts)
        put = (lambda: _replace(path, data)) if self.is_local else (lambda: self.fs.pipe_file(path, data))
        self.retry.call(put, f"write {len(data):,} bytes", path)

    def read(self, *parts: str) -> bytes:
        """The whole of a small file."""
        path = self.path(*parts)
        return cast(bytes, self.retry.call(lambda: self.fs.cat_file(path), "read", path))

    def size(self, *parts: str) -> int:
        """Bytes of a file."""
        path = self.path(*parts)
        return int(self.retry.call(lambda: self._fresh().info(path)["size"], "look up the size", path))

    def open(self, *parts: str) -> BinaryIO:
        """Open a file for reading; ranges can be read without the rest."""
        path = self.path(*parts)
        return cast(BinaryIO, self.retry.call(lambda: self.fs.open(path, "rb"), "open", path))

    def names(self, *parts: str) -> list[str]:
        """Names of files and directories in a directory, sorted; none when it does not exist."""
        path = self.path(*parts)
        try:
            found = self.retry.call(lambda: self._fresh().ls(path, detail=False), "list", path)
        except FileNotFoundError:
            return []
        return sorted({str(name).rstrip("/").rpartition("/")[2] for name in found})

    def delete(self, *parts: str) -> None:
        """Delete a file, if it is there."""
        path = self.path(*parts)
        with contextlib.suppress(FileNotFoundError):
            self.retry.call(lambda: self.fs.rm_file(path), "delete", path)

    def delete_directory(self, *parts: str) -> None:
        """Delete an empty directory, if it is there; nothing on object stores."""
        path = self.path(*parts)
        if self.is_local:
            with contextlib.suppress(FileNotFoundError):
                self.retry.call(lambda: os.rmdir(path), "delete the directory", path)

    def sync_directory(self, *parts: str) -> None:
        """Make what was created or renamed in a directory survive a power cut."""
        if self.is_local:
            path = self.path(*parts)
            self.retry.call(lambda: sync_directory(path), "sync the directory", path)

    def _fresh(self) -> Any:
        self.fs.invalidate_cache()
        return self.fs


def sync_directory(path: str) -> None:
    """fsync a local directory."""
    with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


def _make_durable(path: str) -> None:
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for new in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(new)
        sync_directory(os.path.dirname(new))


def _replace(path: str, data: bytes) -> None:
    """Write beside, fsync, rename, fsync the directory: at no instant is there half a file under ``path``."""
    temporary = path + _TEMPORARY
    with _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    os.replace(temporary, path)
    sync_directory(os.path.dirname(path))


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
