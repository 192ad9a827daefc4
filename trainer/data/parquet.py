"""Criteo's columns in Parquet, found by name, as strings (like the text format) or as integers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trainer.data.arrow_columns import decode_categories, decode_counts, decode_labels
from trainer.data.block import RawBlock, RejectedLine, shorten, squash_dense
from trainer.data.criteo import COLUMNS, DENSE, EXPECTED, LABEL, SCHEMA, SPARSE
from trainer.data.errors import DataError
from trainer.data.index import FileIndex
from trainer.data.paths import resolve_files
from trainer.data.split import Split

_SUFFIXES: Final = (".parquet", ".pq")
_MAX_PIECES: Final = 8
"""A row group is cut into at most this many splits: each split decodes the pages before it once more."""


@dataclass(frozen=True)
class CriteoParquet:
    """Parquet files. Stateless, so it can be shared by threads and pickled."""

    schema = SCHEMA

    def resolve(self, patterns: str | Sequence[str]) -> list[str]:
        """Files behind ``patterns``; in a directory those that end in .parquet, .pq."""
        return resolve_files(patterns, _SUFFIXES)

    def scan(self, path: str, rows_per_split: int) -> FileIndex:
        """Reads only the footer. Split boundaries follow row groups, so that each is decoded (almost) once."""
        metadata = _metadata(path)
        _check_columns(path, metadata)
        starts: list[int] = []
        row = held = 0
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            if held + rows > rows_per_split or not starts:
                piece = max(rows_per_split, -(-rows // _MAX_PIECES))
                starts += range(row, row + rows, piece)
                held = rows
            else:
                held += rows
            row += rows
        return FileIndex(path, row, tuple(starts))

    locate = None

    def read(self, split: Split, ranges: Sequence[tuple[int, int]], block_rows: int) -> Iterator[RawBlock]:
        """Decoded blocks of at most ``block_rows`` rows that cover ``ranges`` of the split exactly."""
        metadata = _metadata(split.path)
        if metadata.num_rows < split.row_end:
            raise DataError(
                split.path, f"has {metadata.num_rows} rows, {split.row_end} were planned: the file has changed"
            )
        with pq.ParquetFile(split.path, metadata=metadata, memory_map=True) as file:
            for start, end in ranges:
                first, groups = _groups_of(metadata, start, end)
                batches = file.iter_batches(block_rows, row_groups=groups, columns=list(COLUMNS), use_threads=False)
                row = first
                for batch in _guarded(batches, split.path):
                    low, high = max(start, row), min(end, row + batch.num_rows)
                    if low < high:
                        yield _block(batch.slice(low - row, high - low), split.path, low)
                    row += batch.num_rows
                    if row >= end:
                        break


def _guarded(batches: Iterator[pa.RecordBatch], path: str) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except (pa.ArrowException, OSError) as error:
        raise DataError(path, f"cannot be decoded ({error})") from error


def _metadata(path: str) -> pq.FileMetaData:
    try:
        status = os.stat(path)
        return _cached_metadata(path, status.st_mtime_ns, status.st_size)
    except FileNotFoundError as error:
        raise DataError(path, "no such file") from error
    except (pa.ArrowException, OSError) as error:
        raise DataError(path, f"is not a readable Parquet file ({error}); is data.format right?") from error


@lru_cache(maxsize=256)
def _cached_metadata(path: str, modified_ns: int, size_bytes: int) -> pq.FileMetaData:
    """Footers of files with many row groups are slow to parse; the other arguments notice a changed file."""
    return pq.read_metadata(path)


def _check_columns(path: str, metadata: pq.FileMetaData) -> None:
    names = set(metadata.schema.to_arrow_schema().names)
    missing = [name for name in COLUMNS if name not in names]
    if missing == [LABEL]:
        raise DataError(path, "has no column 'label': it looks like an unlabeled file, which cannot be trained on")
    if missing:
        raise DataError(path, f"lacks the columns {missing}; wanted are label, I1…I13, C1…C26; it has {sorted(names)}")


def _groups_of(metadata: pq.FileMetaData, start: int, end: int) -> tuple[int, list[int]]:
    """First row of the first row group that meets ``[start, end)``, and those row groups."""
    first = row = 0
    groups: list[int] = []
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if row < end and row + rows > start:
            first = first if groups else row
            groups.append(group)
        row += rows
    return first, groups


def _block(batch: pa.RecordBatch, path: str, row: int) -> RawBlock:
    rows = batch.num_rows
    labels, bad_labels = decode_labels(batch.column(LABEL), path)
    counts, bad_counts = decode_counts([batch.column(name) for name in DENSE], DENSE, path)
    categories, bad_categories = decode_categories([batch.column(name) for name in SPARSE], SPARSE, path)
    if bad_labels is None and bad_counts is None and bad_categories is None:
        return RawBlock(squash_dense(counts.T.copy()), labels, categories, row, row + rows)
    bad = np.zeros((len(COLUMNS), rows), dtype=np.bool_)
    for part, flags in ((slice(0, 1), bad_labels), (slice(1, 14), bad_counts), (slice(14, 40), bad_categories)):
        if flags is not None:
            bad[part] = flags
    keep = np.flatnonzero(~bad.any(axis=0))
    return RawBlock(
        squash_dense(counts.T[keep]),
        labels[keep],
        np.ascontiguousarray(categories[:, keep]),
        row,
        row + rows,
        keep + row,
        _rejected(batch, path, row, bad),
    )


def _rejected(batch: pa.RecordBatch, path: str, row: int, bad: NDArray[np.bool_]) -> list[RejectedLine]:
    rejected = []
    for at in np.flatnonzero(bad.any(axis=0)):
        column = COLUMNS[int(bad[:, at].argmax())]
        value: Any = batch.column(column)[int(at)].as_py()
        value = value.decode("latin-1") if isinstance(value, bytes) else value
        found = "nothing" if value is None else shorten(value) if isinstance(value, str) else str(value)
        expected = EXPECTED[column] if isinstance(value, str) or column == LABEL else _expected_number(column)
        rejected.append(RejectedLine(path, row + int(at) + 1, column, found, expected))
    return rejected


def _expected_number(column: str) -> str:
    return "a whole number, or null" if column in DENSE else "a whole number from 0 to 4294967295, or null"
