"""What every file format offers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from trainer.data.block import RawBlock
from trainer.data.index import FileIndex
from trainer.data.schema import FeatureSchema
from trainer.data.split import Split


class Format(Protocol):
    """Finds, scans and reads files. Stateless, so it can be shared by threads and pickled."""

    @property
    def schema(self) -> FeatureSchema:
        """The columns of every block."""

    @property
    def locate(self) -> Callable[[FileIndex, int], int] | None:
        """Byte offset of a row between two indexed ones; ``None`` where files are not text."""

    @property
    def first_line(self) -> int | None:
        """Line of the first row, from 1, where a row is a line."""

    def resolve(self, patterns: str | Sequence[str]) -> list[str]:
        """Files behind patterns."""

    def scan(self, path: str, rows_per_split: int) -> FileIndex:
        """Counts rows; raises ``DataError`` for a file that cannot be one of this format."""

    def has_label(self, path: str) -> bool:
        """Whether the file has labels, wanted or not."""

    def read(self, split: Split, ranges: Sequence[tuple[int, int]], block_rows: int) -> Iterator[RawBlock]:
        """Blocks of at most ``block_rows`` input rows that cover ``ranges`` of the split exactly, in order."""
