"""Open files of the faulty file system."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from typing_extensions import Buffer


class FaultyReader(io.RawIOBase):
    """Reads of a file below, each announced before with its number of bytes."""

    def __init__(self, file: Any, before_read: Callable[[int], object]) -> None:
        super().__init__()
        self._file, self._before_read = file, before_read

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """As the file below."""
        return bool(self._file.seekable())

    def readinto(self, buffer: Buffer, /) -> int:
        """Read up to ``len(buffer)`` bytes."""
        view = memoryview(buffer).cast("B")
        self._before_read(len(view))
        data = self._file.read(len(view))
        view[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a position."""
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        """Where the next read begins."""
        return int(self._file.tell())

    def close(self) -> None:
        """Close the file below, too."""
        if not self.closed:
            self._file.close()
        super().close()


class FaultyWriter(io.BytesIO):
    """Gathers what is written and puts it when it is closed; after an exception in ``with``, nothing is put."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        super().__init__()
        self._put: Callable[[bytes], None] | None = put

    def __exit__(self, kind: type[BaseException] | None, error: Any, traceback: Any) -> None:
        if kind is not None:
            self._put = None
        self.close()

    def __del__(self) -> None:
        self._put = None  # dropped without being closed: the process gave it up

    def close(self) -> None:
        """Put the file."""
        put, self._put = self._put, None
        data = self.getvalue() if put is not None else b""
        super().close()
        if put is not None:
            put(data)
