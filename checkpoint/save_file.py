"""Sinks: where the bytes of one file of a save go, in order, checksummed on the way, durable when closed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import Any, Final, Protocol

import xxhash

from checkpoint.buffers import PAGE_BYTES
from checkpoint.errors import StorageError, StorageFull
from checkpoint.retry import RetryPolicy, translated
from checkpoint.storage import gone, sync, sync_directory


class Sink(Protocol):
    """One file that is being written."""

    def write(self, buffer: memoryview, count: int) -> None:
        """Append ``count`` bytes of a page-aligned buffer; all but the last call bring whole buffers."""

    def close(self) -> tuple[int, str]:
        """Make it durable.

        Returns:
            Its bytes and checksum, ``xxh3_128:hexdigest``.
        """

    def discard(self) -> None:
        """Delete what was written; raises nothing."""


class LocalSink:
    """A file on a local file system, past the page cache (``O_DIRECT``) where it has that.

    So a save costs almost no CPU, drives nothing out of the page cache, and is on the device when the write returns.
    """

    def __init__(self, path: str, total_bytes: int, retry: RetryPolicy) -> None:
        """``total_bytes`` is known beforehand; a disk with less space is refused before anything is written."""
        self._path, self._total, self._retry = path, total_bytes, retry
        self._hash = xxhash.xxh3_128()
        self._offset = 0
        self._descriptor = -1
        self._created = False
        self._direct = True

    def write(self, buffer: memoryview, count: int) -> None:
        """Append; the last, odd part is written as whole pages and cut off when closing."""
        if self._descriptor < 0:
            try:
                self._retry.call(self._open, "create", self._path)
            except FileNotFoundError as error:
                raise StorageError(gone(self._path)) from error
        self._hash.update(buffer[:count])
        length = -(-count // PAGE_BYTES) * PAGE_BYTES if self._direct else count
        self._retry.call(
            lambda: self._write_at(buffer[:length]), f"write {count:,} bytes at {self._offset:,}", self._path
        )
        self._offset += count

    def close(self) -> tuple[int, str]:
        """Cut to length, fsync file and directory."""
        self._retry.call(
            lambda: os.ftruncate(self._descriptor, self._offset), f"cut to {self._offset:,} bytes", self._path
        )
        try:
            self._settle()
        except FileNotFoundError as error:
            raise StorageError(gone(self._path)) from error
        except OSError as error:
            raise translated(error, "make durable", self._path) from error
        self._close_descriptor()
        return self._offset, f"xxh3_128:{self._hash.hexdigest()}"

    def discard(self) -> None:
        """Close and delete, whatever state it is in; a file that somebody else made is left alone."""
        self._close_descriptor()
        if self._created:
            self._created = False
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _open(self) -> None:
        folder = os.path.dirname(self._path)
        space = os.statvfs(folder)
        if space.f_bavail * space.f_frsize < self._total:
            raise StorageFull(
                f"{self._path}: needs {self._total:,} bytes, {space.f_bavail * space.f_frsize:,} are free. "
                "Free some, or keep fewer saves (checkpoint.retention)"
            )
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self._path, flags | os.O_DIRECT, 0o644)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct = False
            self._descriptor = os.open(self._path, flags & ~os.O_EXCL, 0o644)  # the first attempt may have made it
        self._created = True

    def _write_at(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            try:
                done += os.pwrite(self._descriptor, view[done:], self._offset + done)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)  # it wants a coarser alignment than pages
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
                self._direct = False

    def _settle(self) -> None:
        sync(self._descriptor, self._path)
        if not self._direct:
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        sync_directory(os.path.dirname(self._path))

    def _close_descriptor(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class ObjectSink:
    """An object of an object store: gathered, then put at once, so that a failed put can simply be repeated."""

    PART_BYTES: Final = 32 << 20
    """Largest object; a shard writes as many as it needs."""

    def __init__(self, fs: Any, path: str, retry: RetryPolicy) -> None:
        self._fs, self._path, self._retry = fs, path, retry
        self._data = bytearray()

    def write(self, buffer: memoryview, count: int) -> None:
        """Append to what is gathered."""
        self._data += buffer[:count]

    def close(self) -> tuple[int, str]:
        """Put the object."""
        data = bytes(self._data)
        self._data.clear()
        self._retry.call(lambda: self._fs.pipe_file(self._path, data), f"put {len(data):,} bytes", self._path)
        return len(data), f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}"

    def discard(self) -> None:
        """Delete the object, if it was put."""
        self._data.clear()
        with contextlib.suppress(Exception):
            self._fs.rm_file(self._path)
