"""Parquet files: splits that follow row groups, and record batches of exactly the wanted rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from trainer.data.errors import DataError
from trainer.data.files import is_url, open_file, stamp
from trainer.data.index import FileIndex
from trainer.data.split import Split

SUFFIXES: Final = (".parquet", ".pq")
_MAX_PIECES: Final = 8
"""A row group is cut into at most this many splits: each split decodes the pages before it once more."""


def column_names(path: str) -> list[str]:
    """Names of the top-level columns, from the footer."""
    return list(_metadata(path).schema.to_arrow_schema().names)


def scan_parquet(path: str, rows_per_split: int) -> FileIndex:
    """Reads only the footer. Split boundaries follow row groups, so that each is decoded (almost) once."""
    metadata = _metadata(path)
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


def read_parquet(
    split: Split, ranges: Sequence[tuple[int, int]], block_rows: int, columns: Sequence[str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """First row and columns of blocks of at most ``block_rows`` rows that cover ``ranges`` of the split exactly.

    Raises:
        DataError: the file is shorter than planned, or damaged.
    """
    metadata = _metadata(split.path)
    if metadata.num_rows < split.row_end:
        raise DataError(split.path, f"has {metadata.num_rows} rows, {split.row_end} were planned: the file has changed")
    with ExitStack() as stack:
        source = stack.enter_context(open_file(split.path)) if is_url(split.path) else split.path
        file = stack.enter_context(pq.ParquetFile(source, metadata=metadata, memory_map=not is_url(split.path)))
        for start, end in ranges:
            first, groups = _groups_of(metadata, start, end)
            batches = file.iter_batches(block_rows, row_groups=groups, columns=list(columns), use_threads=False)
            row = first
            for batch in _guarded(batches, split.path):
                low, high = max(start, row), min(end, row + batch.num_rows)
                if low < high:
                    yield low, batch.slice(low - row, high - low)
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
        return _cached_metadata(path, *stamp(path))
    except (pa.ArrowException, OSError) as error:
        raise DataError(path, f"is not a readable Parquet file ({error}); is data.format right?") from error


@lru_cache(maxsize=256)
def _cached_metadata(path: str, size_bytes: int, token: str) -> pq.FileMetaData:
    """Footers of files with many row groups are slow to parse; the other arguments notice a changed file."""
    if not is_url(path):
        return pq.read_metadata(path)
    with open_file(path) as file:
        return pq.read_metadata(file)


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
