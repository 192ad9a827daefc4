"""Splits: the unit of work that the coordinator leases to trainers (DESIGN: a split is a file and a row range)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Purpose = Literal["train", "eval", "predict"]

Labels = Literal["wanted", "ignored", "absent"]
"""What a reader does about the labels of some rows: reads and checks them, passes over them, or finds none."""


@dataclass(frozen=True, slots=True)
class Split:
    """Rows ``[row_start, row_end)`` of ``path``, 0-based, in time order.

    ``byte_start``/``byte_end`` say where those rows lie in a plain text file, so that a reader can seek; they are
    ``None`` where seeking is impossible (gzip) or the format has its own index (Parquet row groups). Rows to be
    predicted have no ``labels``, or some that are ignored.
    """

    path: str
    row_start: int
    row_end: int
    byte_start: int | None = None
    byte_end: int | None = None
    labels: Labels = "wanted"

    @property
    def rows(self) -> int:
        """Rows in the split, rejected ones included."""
        return self.row_end - self.row_start


@dataclass(frozen=True, slots=True)
class Lease:
    """A split handed to one trainer for one epoch; every row of it must come back committed or be re-queued.

    ``ranges`` are the row ranges of the split still to be read, in order and disjoint: a re-queued lease skips what
    the dead trainer had already committed. ``epoch`` counts from 1; for evaluations it is the round, for prediction the
    one after the last.
    """

    lease_id: int
    split: Split
    epoch: int
    purpose: Purpose
    ranges: tuple[tuple[int, int], ...]
    requeued: bool = False
