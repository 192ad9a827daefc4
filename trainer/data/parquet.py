"""Criteo's columns in Parquet, found by name, as strings (like the text format) or as integers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainer.data.arrow_columns import decode_categories, decode_counts, decode_labels
from trainer.data.block import RawBlock, RejectedLine, shorten, squash_dense
from trainer.data.criteo import COLUMNS, DENSE, EXPECTED, LABEL, SCHEMA, SPARSE
from trainer.data.errors import DataError
from trainer.data.index import FileIndex
from trainer.data.parquet_files import SUFFIXES, column_names, read_parquet, scan_parquet
from trainer.data.paths import resolve_files
from trainer.data.schema import FeatureSchema
from trainer.data.split import Split


@dataclass(frozen=True)
class CriteoParquet:
    """Parquet files. Stateless, so it can be shared by threads and pickled.

    ``labeled=False``: a label column is not needed and not read; labels count as 0.
    """

    labeled: bool = True
    locate = None
    first_line = None

    @property
    def schema(self) -> FeatureSchema:
        """Criteo's columns."""
        return replace(SCHEMA, labeled=self.labeled)

    @property
    def _columns(self) -> tuple[str, ...]:
        return COLUMNS if self.labeled else COLUMNS[1:]

    def resolve(self, patterns: str | Sequence[str]) -> list[str]:
        """Files behind ``patterns``; in a directory those that end in .parquet, .pq."""
        return resolve_files(patterns, SUFFIXES)

    def scan(self, path: str, rows_per_split: int) -> FileIndex:
        """Reads only the footer."""
        names = set(column_names(path))
        missing = [name for name in self._columns if name not in names]
        if missing == [LABEL]:
            raise DataError(
                path,
                "has no column 'label': it looks like an unlabeled file, which cannot be trained on; "
                "`penumbra train --unlabeled FILE` (data.predict) predicts it",
            )
        if missing:
            wanted = ("label, " if self.labeled else "") + "I1…I13, C1…C26"
            raise DataError(
                path,
                f"lacks the columns {missing}; wanted are {wanted}, or a map of other columns in data.columns; "
                f"it has {sorted(names)}",
            )
        return scan_parquet(path, rows_per_split)

    def has_label(self, path: str) -> bool:
        """Whether there is a column ``label``."""
        return LABEL in column_names(path)

    def read(self, split: Split, ranges: Sequence[tuple[int, int]], block_rows: int) -> Iterator[RawBlock]:
        """Decoded blocks of at most ``block_rows`` rows that cover ``ranges`` of the split exactly."""
        for row, batch in read_parquet(split, ranges, block_rows, self._columns):
            yield _block(batch, split.path, row, self.labeled)


def _block(batch: pa.RecordBatch, path: str, row: int, labeled: bool) -> RawBlock:
    rows = batch.num_rows
    labels, bad_labels = np.zeros(rows, dtype=np.float32), None
    if labeled:
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
