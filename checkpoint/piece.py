"""Piece: (table, row range, column range). What a shard owns, what a save describes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Rows ``[row_start, row_end)`` × columns ``[col_start, col_end)`` of one embedding table, global indices."""

    table: str
    row_start: int
    row_end: int
    col_start: int
    col_end: int

    def __post_init__(self) -> None:
        if not (0 <= self.row_start < self.row_end and 0 <= self.col_start < self.col_end):
            raise ValueError(
                f"piece of table {self.table!r}: rows [{self.row_start}, {self.row_end}) × columns "
                f"[{self.col_start}, {self.col_end}) is empty or negative"
            )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.row_end - self.row_start

    @property
    def dim(self) -> int:
        """Number of columns."""
        return self.col_end - self.col_start

    @property
    def numel(self) -> int:
        """Number of weights."""
        return self.rows * self.dim

    def __str__(self) -> str:
        return f"{self.table}[{self.row_start}:{self.row_end}, {self.col_start}:{self.col_end}]"
