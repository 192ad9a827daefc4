"""The phase board from outside: who is there, in which phase, and asking for a poisoned batch."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from services.faults.board_file import (
    ENTRIES,
    GENERATION,
    MASK,
    PHASE,
    PID,
    POISON_ASKED,
    POISON_TAKEN,
    START_HIGH,
    START_LOW,
    BoardError,
    BoardFile,
)
from services.faults.phases import BoardRole, Phase
from services.memory.process import ProcessIdentity

_READS = 100


class Slot(NamedTuple):
    """(role, index), as on the board."""

    role: BoardRole
    number: int

    def __str__(self) -> str:
        return f"{self.role}-{self.number}"


class Occupant(NamedTuple):
    """The process in a slot and what it does."""

    process: ProcessIdentity
    generation: int
    phase: Phase


class BoardReader:
    """Reads of one slot take about a microsecond. What is read may be old by the time it is used: freeze, then look."""

    def __init__(self, path: str | Path) -> None:
        """Map the board.

        Raises:
            FileNotFoundError: there is none (yet).
            BoardError: the file is no board, or that of another machine.
        """
        board = BoardFile(path)
        if not board.is_here:
            raise BoardError(f"{path}: the board of another machine, or of before a reboot: its pids mean nothing here")
        self._words = {
            slot: board.words(*slot)
            for slot in (Slot(role, number) for role, count in board.roles.items() for number in range(count))
        }

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All slots, taken or not."""
        return tuple(self._words)

    def occupant(self, slot: Slot) -> Occupant | None:
        """Who is in the slot; ``None`` for nobody (who died is still there until a successor takes it)."""
        words = self._words[slot]
        for _ in range(_READS):
            pid, generation = words[PID], words[GENERATION]
            ticks = words[START_LOW] | words[START_HIGH] << 32
            phase = words[PHASE]
            if (words[PID], words[GENERATION]) == (pid, generation):
                return Occupant(ProcessIdentity(pid, ticks), generation, Phase(phase)) if pid else None
        return None

    def is_in(self, slot: Slot, phase: Phase) -> bool:
        """Whether the slot shows ``phase``."""
        return bool(self._words[slot][PHASE] == phase)

    def entries(self, slot: Slot, phase: Phase, since: int = 0) -> int:
        """How often ``phase`` was entered since the count was ``since``, over all incarnations."""
        return int(self._words[slot][ENTRIES + phase] - since) & MASK

    def ask_poison(self, slot: Slot) -> int:
        """Ask for one non-finite batch; returns a number for ``poison_taken``."""
        words = self._words[slot]
        words[POISON_ASKED] = asked = max(words[POISON_ASKED], words[POISON_TAKEN]) + 1
        return int(asked)

    def poison_taken(self, slot: Slot, asked: int) -> bool:
        """Whether the trainer poisoned a batch for that request."""
        return bool(self._words[slot][POISON_TAKEN] >= asked)

    def withdraw_poison(self, slot: Slot, asked: int) -> bool:
        """Ask for it no more; False when it was taken at the last moment."""
        self._words[slot][POISON_ASKED] = asked - 1
        return not self.poison_taken(slot, asked)
