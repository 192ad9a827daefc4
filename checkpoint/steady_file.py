"""SteadyFile: an open file whose reads are tried again when the storage fails."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol

from checkpoint.retry import RetryPolicy

_BLOCK_BYTES = 1 << 20


class ReadableFile(Protocol):
    """What reading a file of a save takes."""

    def seek(self, offset: int, /) -> Any:
        """Read from byte ``offset`` on."""

    def read(self, count: int, /) -> bytes:
        """At most ``count`` bytes; none at the end."""

    def readinto(self, view: memoryview, /) -> int:
        """Bytes that were read to the beginning of ``view``; 0 at the end."""


class SteadyFile:
    """Wraps any open binary file.

    Raises:
        StorageError: from all reads, when the storage goes on failing.
    """

    def __init__(self, file: Any, retry: RetryPolicy, where: str) -> None:
        """``where``: the file's name for messages."""
        self._file, self._retry, self._where = file, retry, where
        self._position = 0
        self._lost = False

    def seek(self, offset: int) -> None:
        """Read from byte ``offset`` on."""
        self._lost = self._lost or offset != self._position
        self._position = offset

    def read(self, count: int = -1) -> bytes:
        """At most ``count`` bytes, or all that is left; none at the end."""
        if count < 0:
            return b"".join(iter(lambda: self.read(_BLOCK_BYTES), b""))
        data = bytearray(count)
        return bytes(data[: self.readinto(memoryview(data))])

    def readinto(self, view: memoryview) -> int:
        """Bytes that were read to the beginning of ``view``; 0 at the end."""
        count = self._retry.call(lambda: self._attempt(view), f"read {len(view):,} bytes", self._where)
        self._position += count
        return count

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def __enter__(self) -> SteadyFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _attempt(self, view: memoryview) -> int:
        if self._lost:
            self._file.seek(self._position)
        self._lost = True  # until this read has succeeded: a failed one may have moved it
        count = int(self._file.readinto(view))
        self._lost = False
        return count
