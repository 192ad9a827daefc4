"""Whole lines out of a plain, gzip or zstd file through one reused buffer."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final, Literal, NamedTuple, cast

import numpy as np
import pyarrow as pa

from trainer.data.errors import DataError
from trainer.data.files import open_file
from trainer.data.swar import PAD_BYTES, Bytes

CHUNK_BYTES: Final = 1 << 20
MAX_LINE_BYTES: Final = 1 << 20
_NEWLINE: Final = 10

Compression = Literal["gzip", "zstd"]


class Lines(NamedTuple):
    """``rows`` lines in ``buffer[start:end]``, each with its newline. Valid until the next call on the reader."""

    buffer: Bytes
    start: int
    end: int
    rows: int


def compression(path: str) -> Compression | None:
    """How the file is compressed, by its magic bytes, whatever its name."""
    with open_file(path) as file:
        return _compression(file)


@contextmanager
def open_stream(path: str, byte_start: int = 0) -> Iterator[BinaryIO]:
    """Opens for reading bytes; compression is recognized by content, and its errors become ``DataError``."""
    with open_file(path) as raw:
        match _compression(raw):
            case "gzip":
                with _gzip_errors(path), gzip.GzipFile(fileobj=raw, mode="rb") as unzipped:
                    yield cast(BinaryIO, unzipped)
            case "zstd":
                with _zstd_errors(path), pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd") as stream:
                    yield cast(BinaryIO, stream)
            case None:
                raw.seek(byte_start)
                yield raw


def _compression(file: BinaryIO) -> Compression | None:
    magic = file.read(4)
    file.seek(0)
    if magic[:2] == b"\x1f\x8b":
        return "gzip"
    return "zstd" if magic == b"\x28\xb5\x2f\xfd" else None


@contextmanager
def _gzip_errors(path: str) -> Iterator[None]:
    try:
        yield
    except EOFError as error:
        raise DataError(
            path, "gzip file is truncated: it ends before its end-of-stream marker; copy it again"
        ) from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise DataError(path, f"gzip file is damaged ({error}); copy it again") from error


@contextmanager
def _zstd_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if "Truncated" in str(error):
            raise DataError(path, "zstd file is truncated: it ends within a frame; copy it again") from error
        raise DataError(path, f"zstd file is damaged ({error}); copy it again") from error


class LineReader:
    """Takes or skips whole lines. A last line without a newline gets one."""

    def __init__(self, stream: BinaryIO, path: str) -> None:
        """Reads from the stream's position on; ``path`` is for messages."""
        self._stream = stream
        self._path = path
        self._buffer: Bytes = np.empty(2 * PAD_BYTES + 4 * CHUNK_BYTES, dtype=np.uint8)
        self._start = self._end = PAD_BYTES
        self._line_ends = np.empty(0, dtype=np.int64)  # one past each newline in [start, end)
        self._used = 0  # how many of them were handed out
        self._at_end = False

    def take(self, count: int) -> Lines | None:
        """The next lines, at most ``count``; fewer only at the end of the file, ``None`` when there are no more."""
        while self._line_ends.size - self._used < count and self._fill():
            pass
        count = min(count, self._line_ends.size - self._used)
        if count == 0:
            return None
        start = self._start
        self._used += count
        self._start = int(self._line_ends[self._used - 1])
        return Lines(self._buffer, start, self._start, count)

    def skip(self, count: int) -> int:
        """Passes over up to ``count`` lines and returns their bytes."""
        skipped_bytes = 0
        while count > 0 and (lines := self.take(min(count, 4096))) is not None:
            count -= lines.rows
            skipped_bytes += lines.end - lines.start
        return skipped_bytes

    def _fill(self) -> bool:
        if self._at_end:
            return False
        self._make_room()
        room = self._buffer[self._end : self._end + CHUNK_BYTES].data
        read = self._stream.readinto(room)  # type: ignore[attr-defined]
        fresh = np.flatnonzero(self._buffer[self._end : self._end + read] == _NEWLINE) + (self._end + 1)
        self._end += read
        if not read:
            self._at_end = True
            if self._end == (self._line_ends[-1] if self._line_ends.size else self._start):
                return False
            self._buffer[self._end] = _NEWLINE
            self._end += 1
            fresh = np.array([self._end])
        self._line_ends = np.concatenate((self._line_ends, fresh)) if self._line_ends.size else fresh
        if not self._line_ends.size and self._end - self._start > MAX_LINE_BYTES:
            raise DataError(self._path, f"a line is longer than {MAX_LINE_BYTES} bytes: this is not a text click log")
        return True

    def _make_room(self) -> None:
        """Moves what is pending to the front; doubles the buffer when a chunk would still not fit."""
        pending = self._buffer[self._start : self._end]
        target = self._buffer
        if pending.size + CHUNK_BYTES + 2 * PAD_BYTES > target.size:
            target = np.empty(2 * target.size, dtype=np.uint8)
        target[PAD_BYTES : PAD_BYTES + pending.size] = pending
        self._line_ends = self._line_ends[self._used :] - (self._start - PAD_BYTES)
        self._buffer = target
        self._used, self._start, self._end = 0, PAD_BYTES, PAD_BYTES + pending.size
