"""Parquet with a user's own columns, found by the map in ``data.columns``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainer.data.block import RawBlock
from trainer.data.index import FileIndex
from trainer.data.parquet_files import SUFFIXES, column_names, read_parquet, scan_parquet
from trainer.data.paths import resolve_files
from trainer.data.schema import FeatureSchema
from trainer.data.split import Split
from trainer.data.table_block import TableMap


@dataclass(frozen=True)
class TableParquet:
    """Stateless, so it can be shared by threads and pickled."""

    table: TableMap
    locate = None
    first_line = None

    @property
    def schema(self) -> FeatureSchema:
        """The mapped columns."""
        return self.table.schema

    def resolve(self, patterns: str | Sequence[str]) -> list[str]:
        """Files behind ``patterns``; in a directory those that end in .parquet, .pq."""
        return resolve_files(patterns, SUFFIXES)

    def scan(self, path: str, rows_per_split: int) -> FileIndex:
        """Reads only the footer."""
        self.table.check_names(path, column_names(path))
        return scan_parquet(path, rows_per_split)

    def has_label(self, path: str) -> bool:
        """Whether the column that ``data.columns.label`` names is there."""
        return self.table.columns.label in column_names(path)

    def read(self, split: Split, ranges: Sequence[tuple[int, int]], block_rows: int) -> Iterator[RawBlock]:
        """Decoded blocks of at most ``block_rows`` rows that cover ``ranges`` of the split exactly."""
        for row, batch in read_parquet(split, ranges, block_rows, self.table.needed):
            yield self.table.block(batch, split.path, row, row)
