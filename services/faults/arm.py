"""Arm: how far the injector is with one fault of the plan."""

from __future__ import annotations

from services.faults.aim import Aim
from services.faults.board_reader import Slot
from services.faults.schedule import Moment, Series


class Arm:
    """The occurrence of a series that is next, and what is known about it."""

    def __init__(self, series: Series, now_s: float) -> None:
        self.series = series
        self.occurrence = -1
        self.next(now_s)

    @property
    def done(self) -> bool:
        """Whether every occurrence was placed or given up."""
        return self.occurrence >= len(self.series.moments)

    @property
    def moment(self) -> Moment:
        """When the occurrence is to happen."""
        return self.series.moments[self.occurrence]

    def next(self, now_s: float) -> None:
        """Go on to the next occurrence."""
        self.occurrence += 1
        self.armed_s = now_s
        self.due_s: float | None = None
        self.aim: Aim | None = None
        self.asked: tuple[Slot, int] | None = None
        """The request for a poisoned batch."""
