"""What became of every fault: records, their log, and the report of a whole plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from services.faults.phases import BoardRole, PhaseName


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    time: float
    """Unix seconds."""
    at_s: float
    """Seconds since the plan began."""
    fault: int
    """Number in the plan, from 0."""
    occurrence: int
    """Of this fault, from 0."""
    do: str


class Injected(_Record):
    """A fault that really happened."""

    kind: Literal["injected"] = "injected"
    role: BoardRole | None = None
    index: int | None = None
    generation: int | None = None
    pid: int | None = None
    phase: PhaseName | None = None
    """What the process was in when it was frozen for the fault."""
    wanted_phase: PhaseName | None = None
    entry: int | None = None
    """The entry into ``wanted_phase`` that was hit, counted as the plan does."""
    freezes: int = 0
    """How often somebody was frozen for it; all but the last had left the phase by then and were let go."""
    due_s: float | None = None
    samples: int | None = None
    """As the run had reported by then."""
    hold_s: float | None = None


class NotInjected(_Record):
    """A fault that could not be placed, and why."""

    kind: Literal["not_injected"] = "not_injected"
    reason: str
    freezes: int = 0


class Released(BaseModel):
    """A held fault that ended; the guardian writes lines of this kind itself."""

    kind: Literal["released"] = "released"
    time: float
    by: Literal["injector"] = "injector"
    fault: int
    occurrence: int
    held_s: float
    found: Literal["undone", "dead"] = "undone"
    """``dead``: the stopped process had been killed meanwhile, as a run does with one that hangs."""


class Report(BaseModel):
    """The whole plan; ``planned`` = injected + not injected."""

    planned: int
    injected: tuple[Injected, ...]
    not_injected: tuple[NotInjected, ...]
    freezes: int
    """For faults aimed at a phase, those that were never placed included."""
    phase_hits: int
    by_phase: dict[str, int]
    """Faults on processes by the phase that they really hit; ``unknown`` without a board."""

    @classmethod
    def of(cls, injected: Sequence[Injected], not_injected: Sequence[NotInjected]) -> Report:
        """Count."""
        aimed = [record for record in injected if record.wanted_phase]
        return cls(
            planned=len(injected) + len(not_injected),
            injected=tuple(injected),
            not_injected=tuple(not_injected),
            freezes=sum(hit.freezes for hit in aimed) + sum(miss.freezes for miss in not_injected),
            phase_hits=sum(record.phase == record.wanted_phase for record in aimed),
            by_phase=dict(Counter(record.phase or "unknown" for record in injected if record.do in ("kill", "stop"))),
        )

    def __str__(self) -> str:
        text = f"{len(self.injected)} of {self.planned} faults injected"
        if self.by_phase:
            text += "; hit in " + ", ".join(f"{phase} {count}" for phase, count in sorted(self.by_phase.items()))
        if self.freezes:
            text += f"; {self.phase_hits} of {self.freezes} freezes were in the phase they were meant for"
        lines = [
            f"not injected: fault {record.fault}.{record.occurrence} ({record.do}): {record.reason}"
            for record in self.not_injected
        ]
        return "\n".join([text, *lines])


class FaultLog:
    """Appends one JSON object a line, at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.injected: list[Injected] = []
        self.not_injected: list[NotInjected] = []

    def add(self, record: Injected | NotInjected | Released) -> None:
        """Count it and write it down."""
        if isinstance(record, Injected):
            self.injected.append(record)
        elif isinstance(record, NotInjected):
            self.not_injected.append(record)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(record.model_dump_json(exclude_none=True) + "\n")

    def report(self) -> Report:
        """So far."""
        return Report.of(self.injected, self.not_injected)
