"""The fsspec file system ``faulty``: another one, with the storage faults that are switched on at the moment.

``faulty://CONTROL::file:///folder`` is ``file:///folder`` under the control file ``CONTROL``; any protocol may follow.
It behaves like an object store, whatever is below: a file is put whole or not at all, folders need not be made.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import threading
import time
from collections import Counter
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.chained import ChainedFileSystem
from fsspec.implementations.local import LocalFileSystem

from services.faults.faulty_file import FaultyReader, FaultyWriter
from services.faults.storage_fault import Operation
from services.faults.storage_switch import CHECK_EVERY_S, ActiveFault, StorageSwitch

_PREFIX = "faulty://"
_TEMPORARY = ".faulty-tmp"


def register_faulty() -> None:
    """Make ``faulty://`` known to fsspec in this process; to be called before such a URL is opened."""
    fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)


def faulty_url(control: str | os.PathLike[str], target: str) -> str:
    """``target`` (a URL or a path) under the control file ``control`` (a local path)."""
    url = target if "://" in target else f"file://{os.path.abspath(target)}"
    return f"{_PREFIX}{os.path.abspath(control)}::{url}"


class FaultyFileSystem(ChainedFileSystem):  # type: ignore[misc]  # fsspec has no annotations
    """Asks the switch before every operation.

    Args:
        control: path of the control file.
        target_protocol: with ``target_options`` the file system below, as fsspec's chained URLs give it.
        target_options: its options.
        fo: not used; the paths of the calls are those of the file system below.
        options: more of its options.
    """

    protocol: ClassVar[str] = "faulty"

    def __init__(
        self,
        control: str | None = None,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        fo: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if not control or not target_protocol:
            raise ValueError("a faulty URL is faulty:///path/of/control.json::protocol://path; see docs/faults.md")
        self.fs: Any = fsspec.filesystem(target_protocol, **{**(target_options or {}), **options})
        self._local = isinstance(self.fs, LocalFileSystem)
        self._switch = StorageSwitch(control)
        self._taken_bytes: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._random = random.Random(0)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "" if path.startswith(_PREFIX) else path  # the URL's own part is the control file

    @staticmethod
    def _get_kwargs_from_urls(url: str) -> dict[str, str]:
        return {"control": url.removeprefix(_PREFIX)} if url.startswith(_PREFIX) else {}

    def check(self, operation: Operation, path: str, size_bytes: int = 0) -> tuple[ActiveFault, ...]:
        """Wait as the faults say, or raise as they say.

        Returns:
            Those that concern the operation.
        """
        started = time.monotonic()
        while True:
            faults = self._concerning(operation, path)
            left_s = started + sum(active.fault.delay_s(size_bytes) for active in faults) - time.monotonic()
            if left_s <= 0.0:
                break
            time.sleep(min(left_s, CHECK_EVERY_S))  # a fault may end meanwhile
        with self._lock:
            for active in faults:
                refusal = active.fault.refusal(path, size_bytes, self._taken_bytes[active.id], self._random)
                if refusal is not None:
                    raise refusal
            for active in faults:
                self._taken_bytes[active.id] += size_bytes
        return faults

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Store a whole file."""
        data = bytes(value)
        for active in self.check("write", path, len(data)):
            data = active.fault.altered(path, data)
        if not self._local:
            self.fs.pipe_file(path, data, **kwargs)
            return
        temporary = path + _TEMPORARY
        self.fs.makedirs(os.path.dirname(path), exist_ok=True)
        self.fs.pipe_file(temporary, data)
        os.replace(temporary, path)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Read a file, or a part."""
        data: bytes = self.fs.cat_file(path, start=start, end=end, **kwargs)
        self.check("read", path, len(data))
        return data

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode == "rb":
            self.check("read", path)
            return FaultyReader(self.fs.open(path, mode), lambda count: self.check("read", path, count))
        if mode in ("wb", "xb"):
            self.check("write", path)
            return FaultyWriter(lambda data: self.pipe_file(path, data))
        raise io.UnsupportedOperation(f"faulty storage opens files for rb, wb and xb, not {mode!r}: {path}")

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        """List a folder."""
        self.check("list", path)
        found = self.fs.ls(path, detail=detail, **kwargs)
        return [entry for entry in found if not str(entry["name"] if detail else entry).endswith(_TEMPORARY)]

    def info(self, path: str, **kwargs: Any) -> Any:
        """Size and kind."""
        self.check("list", path)
        return self.fs.info(path, **kwargs)

    def rm_file(self, path: str) -> None:
        """Delete a file, and the folder that it leaves empty."""
        self.check("delete", path)
        self.fs.rm_file(path)
        if self._local:
            with contextlib.suppress(OSError):
                self.fs.rmdir(os.path.dirname(path))

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy, as a read and a write."""
        self.pipe_file(path2, self.cat_file(path1))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a folder with its parents."""
        self.check("write", path)
        self.fs.makedirs(path, exist_ok=exist_ok)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Make a folder."""
        self.check("write", path)
        self.fs.mkdir(path, create_parents=create_parents, **kwargs)

    def rmdir(self, path: str) -> None:
        """Delete an empty folder."""
        self.check("delete", path)
        self.fs.rmdir(path)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Forget listings."""
        self.fs.invalidate_cache(path)

    def _concerning(self, operation: Operation, path: str) -> tuple[ActiveFault, ...]:
        return tuple(active for active in self._switch.active() if active.fault.concerns(operation, path))
