"""Criteo text to Parquet without a loss: missing stays missing, negative stays negative, hashes become numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.data.block import MISSING, RejectedLine
from trainer.data.column_stats import ColumnStats
from trainer.data.criteo import COLUMNS, DENSE, LABEL, SPARSE
from trainer.data.criteo_lines import CriteoRows, decode_lines
from trainer.data.split import Split
from trainer.data.swar import decode_int
from trainer.data.text_files import read_text

_BLOCK_ROWS: Final = 4096

# 64 bits for the integers, because text may have 18 digits: a row that can be trained on as text must be as Parquet.
_TYPES: Final = {LABEL: pa.int8()} | dict.fromkeys(DENSE, pa.int64()) | dict.fromkeys(SPARSE, pa.uint32())


def schema_of(labeled: bool) -> pa.Schema:
    """label int8 (0 or 1), I1…I13 int64, C1…C26 uint32; null is missing."""
    return pa.schema([(name, _TYPES[name]) for name in (COLUMNS if labeled else COLUMNS[1:])])


def convert(
    split: Split,
    out: str,
    group_rows: int,
    stats: ColumnStats,
    on_rejected: Callable[[list[RejectedLine]], None],
    *,
    labeled: bool,
) -> int:
    """Writes the rows of ``split`` into a Parquet file and returns how many; memory does not depend on how many.

    Args:
        split: rows of a text file.
        out: the file to write.
        group_rows: input rows of a row group, which training takes as a split.
        stats: is told of every value.
        on_rejected: is told of malformed lines; what it raises ends the work.
        labeled: the text has 40 columns, not 39.
    """
    schema = schema_of(labeled)
    held: list[pa.RecordBatch] = []
    held_rows = written = 0
    with pq.ParquetWriter(out, schema) as writer:
        for row, lines in read_text(split, ((split.row_start, split.row_end),), min(_BLOCK_ROWS, group_rows)):
            rows, _, rejected = decode_lines(lines, split.path, row, "wanted" if labeled else "absent")
            if rejected:
                on_rejected(rejected)
            held.append(_batch(rows, schema, stats))
            held_rows += lines.rows
            written += held[-1].num_rows
            if held_rows + _BLOCK_ROWS > group_rows or row + lines.rows == split.row_end:
                writer.write_table(pa.Table.from_batches(held, schema), row_group_size=group_rows)
                held, held_rows = [], 0
    return written


def _batch(rows: CriteoRows, schema: pa.Schema, stats: ColumnStats) -> pa.RecordBatch:
    buffer, starts, ends = rows.integers
    empty = starts == ends
    values = rows.counts.astype(np.int64)
    negative = np.nonzero((buffer[starts] == ord("-")) & ~empty)
    if negative[0].size:
        sizes, _ = decode_int(buffer, starts[negative] + 1, ends[negative])
        values[negative] = -sizes.astype(np.int64)
    columns = [pa.array(rows.labels.astype(np.int8))] if schema.names[0] == LABEL else []
    for name, column, nothing in zip(DENSE, values.T.copy(), empty.T.copy(), strict=True):
        stats.add(name, column.view(np.uint64), nothing)
        columns.append(pa.array(column, mask=nothing))
    for name, hashes in zip(SPARSE, rows.categories, strict=True):
        nothing = hashes == MISSING
        stats.add(name, hashes, nothing)
        columns.append(pa.array(hashes.astype(np.uint32), mask=nothing))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
