"""The record of the work: which rows are committed, what is leased to whom, which reports are counted."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from services.coordinator.books_state import BooksState
from services.state.record import Count, Part, Record

Ranges = tuple[tuple[Count, Count], ...]
"""Row ranges ``[start, end)``, ascending and apart from each other."""


class LeasePart(Part):
    """A split of the training stage that a trainer works on.

    ``ordinal``: its place in the stage. ``remaining``: not committed yet. ``seen``: somebody had it before.
    """

    lease_id: Count
    trainer_id: Count
    ordinal: Count
    remaining: Ranges
    seen: bool


class ReportPart(Part):
    """Reports of a trainer incarnation up to ``number`` are counted."""

    trainer_id: Count
    generation: Annotated[int, Field(ge=1)]
    number: Count


class SplitsRecord(Record):
    """One value, so that rows, leases and reports always belong together.

    ``trained_by``: samples that each trainer's current incarnation committed.
    """

    kind: ClassVar[str] = "splits"
    books: BooksState
    leases: tuple[LeasePart, ...] = ()
    next_lease_id: Count = 0
    reports: tuple[ReportPart, ...] = ()
    trained_by: dict[int, Count] = Field(default_factory=dict)
