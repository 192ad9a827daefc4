"""Records of the work: what is leased to whom, and which rows are committed."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from services.state.record import Count, Part, Record
from trainer.data.split import Labels, Purpose

Ranges = tuple[tuple[Count, Count], ...]
"""Row ranges ``[start, end)``, ascending and apart from each other."""


class SplitPart(Part):
    """A split (``trainer.data.split.Split``)."""

    path: str
    row_start: Count
    row_end: Count
    byte_start: Count | None = None
    byte_end: Count | None = None
    labels: Labels = "wanted"


class LeaseRecord(Record):
    """A split that a trainer works on; deleted once its last row is committed."""

    kind: ClassVar[str] = "lease"
    lease_id: Count
    trainer_id: Count
    trainer_generation: Annotated[int, Field(ge=1)]
    purpose: Purpose
    epoch: Annotated[int, Field(ge=1)]
    split: SplitPart
    remaining: Ranges
    """Not committed yet."""
    requeued: bool = False

    @property
    def name(self) -> str:
        """The lease's number."""
        return str(self.lease_id)

    @model_validator(mode="after")
    def _check(self) -> LeaseRecord:
        check_ranges(self.remaining, f"lease {self.lease_id}")
        return self


class FileRows(Part):
    """Committed rows of one file in the stage that is worked on."""

    path: str
    epoch: Annotated[int, Field(ge=1)]
    committed: Ranges

    @model_validator(mode="after")
    def _check(self) -> FileRows:
        check_ranges(self.committed, f"{self.path}, epoch {self.epoch}")
        return self


class RowCountsPart(Part):
    """Rows by outcome (``services.coordinator.work_queue.RowCounts``)."""

    trained: Count = 0
    skipped: Count = 0
    rejected: Count = 0
    evaluated: Count = 0
    predicted: Count = 0


class SplitsRecord(Record):
    """The data position: stages that are done count as a whole, so the size follows the gaps and not the rows."""

    kind: ClassVar[str] = "splits"
    data_hash: str
    """Of files, row counts and epochs: a position in other data means nothing."""
    stages_done: Count
    stage: Purpose | None
    """Of the stage that is worked on; ``None``: all is done."""
    round: Count
    """Epoch, or round of evaluation, of that stage."""
    files: tuple[FileRows, ...] = ()
    next_lease_id: Count = 0
    counts: RowCountsPart = RowCountsPart()


def check_ranges(ranges: Ranges, where: str) -> None:
    """Raise ``ValueError`` when rows would be counted twice, or not at all."""
    end = -1
    for low, high in ranges:
        if low >= high or low <= end:
            raise ValueError(f"{where}: row ranges {ranges} are not ascending, apart and non-empty")
        end = high
