"""Text files of one row a line: counted and indexed once, then read line by line from any row on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from trainer.data.errors import DataError
from trainer.data.files import stamp
from trainer.data.index import FileIndex
from trainer.data.lines import CHUNK_BYTES, LineReader, Lines, compression, open_stream
from trainer.data.split import Split

_NEWLINE: Final = 10


def scan_text(path: str, rows_per_split: int, header_lines: int = 0) -> FileIndex:
    """Counts rows and notes the byte offset of every ``rows_per_split``-th one, in one pass and flat memory.

    Args:
        path: the file.
        rows_per_split: distance of the offsets.
        header_lines: lines before the first row.

    Raises:
        DataError: no row at all.
    """
    packed = compression(path) is not None
    first_byte = 0
    if header_lines and not packed:
        with open_stream(path) as stream:
            first_byte = LineReader(stream, path).skip(header_lines)
    chunk = np.empty(4 * CHUNK_BYTES, dtype=np.uint8)
    offsets, rows, at_byte, last = [first_byte], 0, first_byte, _NEWLINE
    with open_stream(path, first_byte) as stream:
        while read := stream.readinto(chunk.data):  # type: ignore[attr-defined]
            newlines = np.flatnonzero(chunk[:read] == _NEWLINE)
            first = rows_per_split - 1 - rows % rows_per_split
            offsets += (newlines[first::rows_per_split] + (at_byte + 1)).tolist()
            rows += newlines.size
            at_byte += read
            last = int(chunk[read - 1])
    rows += last != _NEWLINE
    if packed:
        rows -= header_lines
    if rows <= 0:
        nothing = "has a header but no rows" if header_lines else "is empty"
        raise DataError(path, f"{nothing}; remove it or take it out of data.train, data.eval, data.predict")
    if packed:  # cannot seek: one reader streams it
        return FileIndex(path, rows, (0,))
    starts = tuple(range(0, rows, rows_per_split))
    return FileIndex(path, rows, starts, tuple(offsets[: len(starts)]), at_byte)


def locate_row(index: FileIndex, row: int) -> int:
    """Byte offset of a row between two indexed ones (where the evaluation part begins)."""
    assert index.offsets is not None
    at = bisect_right(index.starts, row) - 1
    offset = index.offsets[at]
    with open_stream(index.path, offset) as stream:
        return offset + LineReader(stream, index.path).skip(row - index.starts[at])


def read_text(
    split: Split, ranges: Sequence[tuple[int, int]], block_rows: int, header_lines: int = 0
) -> Iterator[tuple[int, Lines]]:
    """First row and lines of blocks of at most ``block_rows`` rows that cover ``ranges`` of the split exactly.

    Raises:
        DataError: the file ends before a planned row.
    """
    with open_stream(split.path, split.byte_start or 0) as stream:
        reader = LineReader(stream, split.path)
        row = split.row_start if split.byte_start is not None else -header_lines
        for start, end in ranges:
            reader.skip(start - row)
            row = start
            while row < end:
                lines = reader.take(min(block_rows, end - row))
                if lines is None:
                    raise DataError(
                        split.path,
                        f"ends before row {row + 1}, rows up to {end} were planned: the file has changed since "
                        f"the run was planned ({stamp(split.path)[0]} bytes now); start the run again",
                    )
                yield row, lines
                row += lines.rows
