"""Criteo's tab-separated text: label, 13 integers, 26 hashed categories of 8 hexadecimal digits; empty is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trainer.data.block import RawBlock, squash_dense
from trainer.data.criteo import COLUMNS, SCHEMA
from trainer.data.criteo_lines import decode_lines
from trainer.data.index import FileIndex
from trainer.data.lines import LineReader, open_stream
from trainer.data.paths import resolve_files
from trainer.data.schema import FeatureSchema
from trainer.data.split import Labels, Split
from trainer.data.text_files import locate_row, read_text, scan_text

_SUFFIXES: Final = (".tsv", ".txt", ".gz", ".zst", "")


@dataclass(frozen=True)
class CriteoTsv:
    """Plain, gzip or zstd text files. Stateless, so it can be shared by threads and pickled.

    ``labeled=False`` is for files of 39 columns, and of 40 in splits that ignore the label; labels then count as 0.
    """

    labeled: bool = True
    first_line = 1

    @property
    def schema(self) -> FeatureSchema:
        """Criteo's columns."""
        return replace(SCHEMA, labeled=self.labeled)

    def resolve(self, patterns: str | Sequence[str]) -> list[str]:
        """Files behind ``patterns``; in a directory those that end in .tsv, .txt, .gz, .zst or have no suffix."""
        return resolve_files(patterns, _SUFFIXES)

    def scan(self, path: str, rows_per_split: int) -> FileIndex:
        """Counts rows and notes the byte offset of every ``rows_per_split``-th one, in one pass and flat memory."""
        return scan_text(path, rows_per_split)

    def locate(self, index: FileIndex, row: int) -> int:
        """Byte offset of a row between two indexed ones (where the evaluation part begins)."""
        return locate_row(index, row)

    def has_label(self, path: str) -> bool:
        """Whether the first line has as many columns as a labeled one."""
        with open_stream(path) as stream:
            lines = LineReader(stream, path).take(1)
        return lines is not None and lines.buffer[lines.start : lines.end].tobytes().count(b"\t") + 1 == len(COLUMNS)

    def read(self, split: Split, ranges: Sequence[tuple[int, int]], block_rows: int) -> Iterator[RawBlock]:
        """Decoded blocks of at most ``block_rows`` input rows that cover ``ranges`` of the split exactly."""
        labels: Labels = split.labels if self.labeled or split.labels == "ignored" else "absent"
        for row, lines in read_text(split, ranges, block_rows):
            rows, row_index, rejected = decode_lines(lines, split.path, row, labels)
            dense = squash_dense(rows.counts)
            yield RawBlock(dense, rows.labels, rows.categories, row, row + lines.rows, row_index, rejected)
