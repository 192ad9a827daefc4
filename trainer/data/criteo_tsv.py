"""Criteo's tab-separated text: label, 13 integers, 26 hashed categories of 8 hexadecimal digits; empty is missing."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from trainer.data.block import F32, U64, RawBlock, RejectedLine, shorten, squash_dense
from trainer.data.criteo import COLUMNS, EXPECTED, MAX_DIGITS, SCHEMA
from trainer.data.errors import DataError
from trainer.data.index import FileIndex
from trainer.data.lines import CHUNK_BYTES, LineReader, Lines, is_gzip, open_stream
from trainer.data.paths import resolve_files
from trainer.data.split import Split
from trainer.data.swar import PAD_BYTES, Bytes, decode_hex, decode_int

_SUFFIXES: Final = (".tsv", ".txt", ".gz", "")
_TAB: Final = 9
_NEWLINE: Final = 10
_RETURN: Final = 13
_WIDTH: Final = len(COLUMNS)
_FIRST_SPARSE: Final = 14
_GOOD_LINE: Final = re.compile(rb"[01](?:\t(?:-?[0-9]{1,%d})?){13}(?:\t(?:[0-9a-fA-F]{8})?){26}\r?" % MAX_DIGITS)
_Decoded = tuple[F32, F32, U64]


@dataclass(frozen=True)
class CriteoTsv:
    """Plain or gzip text files. Stateless, so it can be shared by threads and pickled."""

    schema = SCHEMA

    def resolve(self, patterns: str | Sequence[str]) -> list[str]:
        """Files behind ``patterns``; in a directory those that end in .tsv, .txt, .gz or have no suffix."""
        return resolve_files(patterns, _SUFFIXES)

    def scan(self, path: str, rows_per_split: int) -> FileIndex:
        """Counts rows and notes the byte offset of every ``rows_per_split``-th one, in one pass and flat memory."""
        gzipped = is_gzip(path)
        chunk = np.empty(4 * CHUNK_BYTES, dtype=np.uint8)
        offsets, rows, size_bytes, last = [0], 0, 0, _NEWLINE
        with open_stream(path) as stream:
            while read := stream.readinto(chunk.data):  # type: ignore[attr-defined]
                newlines = np.flatnonzero(chunk[:read] == _NEWLINE)
                first = rows_per_split - 1 - rows % rows_per_split
                offsets += (newlines[first::rows_per_split] + (size_bytes + 1)).tolist()
                rows += newlines.size
                size_bytes += read
                last = int(chunk[read - 1])
        rows += last != _NEWLINE
        if rows == 0:
            raise DataError(path, "is empty; remove it or take it out of data.train / data.eval")
        if gzipped:  # cannot seek: one reader streams it
            return FileIndex(path, rows, (0,))
        starts = tuple(range(0, rows, rows_per_split))
        return FileIndex(path, rows, starts, tuple(offsets[: len(starts)]), size_bytes)

    def locate(self, index: FileIndex, row: int) -> int:
        """Byte offset of a row between two indexed ones (where the evaluation part begins)."""
        assert index.offsets is not None
        at = bisect_right(index.starts, row) - 1
        offset = index.offsets[at]
        with open_stream(index.path, offset) as stream:
            return offset + LineReader(stream, index.path).skip(row - index.starts[at])

    def read(self, split: Split, ranges: Sequence[tuple[int, int]], block_rows: int) -> Iterator[RawBlock]:
        """Decoded blocks of at most ``block_rows`` input rows that cover ``ranges`` of the split exactly."""
        with open_stream(split.path, split.byte_start or 0) as stream:
            reader = LineReader(stream, split.path)
            row = split.row_start if split.byte_start is not None else 0
            for start, end in ranges:
                reader.skip(start - row)
                row = start
                while row < end:
                    lines = reader.take(min(block_rows, end - row))
                    if lines is None:
                        raise DataError(
                            split.path,
                            f"ends before row {row + 1}, rows up to {end} were planned: the file has changed since "
                            f"the run was planned ({os.path.getsize(split.path)} bytes now); start the run again",
                        )
                    yield _block(lines, split.path, row)
                    row += lines.rows


def _block(lines: Lines, path: str, row: int) -> RawBlock:
    decoded = _decode(lines)
    if decoded is not None:
        return RawBlock(*decoded, line_start=row, line_end=row + lines.rows)
    good, row_index, rejected = _sort_out(lines, path, row)
    decoded = _decode(good)
    if decoded is None or not rejected:
        raise DataError(path, f"rows {row + 1} to {row + lines.rows}: checked and decoded lines disagree (a bug)")
    return RawBlock(*decoded, row, row + lines.rows, np.array(row_index, dtype=np.int64), rejected)


def _decode(lines: Lines) -> _Decoded | None:
    """Dense n×13, labels n, categories 26×n; ``None`` when any line is malformed."""
    buffer, start, end, count = lines
    text = buffer[start:end]
    # Tab and newline are the two highest bytes up to 10; a lower one is garbage and shows up in the tab count.
    edges = np.flatnonzero(text <= _NEWLINE)
    if edges.size != count * _WIDTH or np.count_nonzero(text == _TAB) != count * (_WIDTH - 1):
        return None
    edges += start
    fields = edges.reshape(count, _WIDTH)
    line_ends = fields[:, -1]
    if not (buffer[line_ends] == _NEWLINE).all():
        return None
    label_ends = fields[:, 0]
    labels = buffer[label_ends - 1] - np.uint8(ord("0"))
    one_character = label_ends[1:] - line_ends[:-1] == 2
    if (labels > 1).any() or not one_character.all() or (count and label_ends[0] - start != 1):
        return None
    counts, bad = decode_int(buffer, fields[:, : _FIRST_SPARSE - 1] + 1, fields[:, 1:_FIRST_SPARSE])
    if bad is not None:
        return None
    field_starts = np.add(fields[:, _FIRST_SPARSE - 1 : -1].T, 1, order="C")
    field_ends = fields[:, _FIRST_SPARSE:].T.copy()
    field_ends[-1] -= buffer[line_ends - 1] == _RETURN
    categories, bad = decode_hex(buffer, field_starts, field_ends)
    if bad is not None:
        return None
    return squash_dense(counts), labels.astype(np.float32), categories


def _sort_out(lines: Lines, path: str, row: int) -> tuple[Lines, list[int], list[RejectedLine]]:
    """The slow path: separates malformed lines; the others are laid out again for the one decoder there is."""
    good: list[bytes] = []
    row_index: list[int] = []
    rejected: list[RejectedLine] = []
    for number, line in enumerate(lines.buffer[lines.start : lines.end].tobytes().split(b"\n")[:-1], start=row):
        if _GOOD_LINE.fullmatch(line):
            good.append(line)
            row_index.append(number)
        else:
            rejected.append(RejectedLine(path, number + 1, *_diagnose(line)))
    text = b"".join(line + b"\n" for line in good)
    buffer: Bytes = np.zeros(len(text) + 2 * PAD_BYTES, dtype=np.uint8)
    buffer[PAD_BYTES : PAD_BYTES + len(text)] = np.frombuffer(text, dtype=np.uint8)
    return Lines(buffer, PAD_BYTES, PAD_BYTES + len(text), len(good)), row_index, rejected


def _diagnose(line: bytes) -> tuple[str, str, str]:
    """(column, found, expected) of a line that is not good."""
    fields = line.removesuffix(b"\r").split(b"\t")
    if len(fields) != _WIDTH:
        expected = f"{_WIDTH} tab-separated columns (label, I1…I13, C1…C26)"
        if len(fields) == _WIDTH - 1:
            expected += "; 39 columns look like an unlabeled file (Criteo's test.txt), which cannot be trained on"
        found = f"{len(fields)} columns" if line.strip() else "an empty line"
        return "line", found, expected
    prefix = b"0" + b"\t" * (_WIDTH - 1)
    for at, (column, field) in enumerate(zip(COLUMNS, fields, strict=True)):
        alone = field + prefix[1:] if at == 0 else prefix[: at + 1] + field + prefix[at + 1 :]
        if not _GOOD_LINE.fullmatch(alone):
            try:
                return column, shorten(field.decode("utf-8")), EXPECTED[column]
            except UnicodeDecodeError:
                return column, f"bytes that are not UTF-8: {shorten(field.decode('latin-1'))}", EXPECTED[column]
    raise AssertionError("every malformed line has a malformed column")
