"""Aim: waits for a process to be in a phase, and freezes it there."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from services.faults.board_reader import BoardReader, Slot
from services.faults.held import Held
from services.faults.phases import Phase
from services.faults.plan import OnPhase, Whom
from services.faults.targets import Target, phase_of
from services.faults.victim import Victim
from services.memory.process import ProcessIdentity


class Frozen(NamedTuple):
    """A process that stands still in the phase."""

    target: Target
    victim: Victim
    phase: Phase
    entry: int


class Aim:
    """One occurrence of a fault that is aimed at a phase; counts entries from its making on.

    Everything slow (finding the process, holding its pid, telling the guardian) is done before the phase comes.

    Args:
        board: of the run.
        held: the guardian's line.
        whom: who may be hit.
        moment: the phase, and which entry.
        untouchable: processes that stand still for another fault.
    """

    def __init__(
        self,
        board: BoardReader,
        held: Held,
        whom: Whom,
        moment: OnPhase,
        untouchable: Set[ProcessIdentity],
    ) -> None:
        self._board, self._held, self._untouchable = board, held, untouchable
        self._phase, self._entry = Phase[moment.phase.upper()], moment.entry
        slots = [s for s in board.slots if s.role == whom.role and whom.index in ("any", s.number)]
        self._since = {slot: board.entries(slot, self._phase) for slot in slots}
        self._victims: dict[Slot, tuple[Target, Victim]] = {}
        self.freezes = 0
        """How often somebody was frozen."""
        self.look()

    def look(self) -> None:
        """Find the processes of today; to be called every few milliseconds."""
        for slot in self._since:
            occupant = self._board.occupant(slot)
            known = self._victims.get(slot)
            if known is not None and (occupant is None or known[0].process != occupant.process):
                self._drop(slot)
                known = None
            if known is None and occupant is not None:
                try:
                    victim = Victim(occupant.process)
                except ProcessLookupError:
                    continue
                self._held.process(occupant.process)
                self._victims[slot] = (Target(slot, occupant.generation, occupant.process), victim)

    def poll(self) -> Frozen | None:
        """Freeze whoever is in the phase now; ``None`` when nobody is, or it was left before the freeze took hold."""
        for slot, (target, victim) in list(self._victims.items()):
            if not self._board.is_in(slot, self._phase) or self._entered(slot) < self._entry:
                continue
            if target.process in self._untouchable:
                continue
            if not victim.freeze():
                victim.resume()
                self._drop(slot)
                continue
            self.freezes += 1
            if phase_of(self._board, target) is self._phase:
                return Frozen(target, victim, self._phase, self._entered(slot))
            victim.resume()
        return None

    def close(self) -> None:
        """Let go of everybody; who stands still for a fault by now goes on being held."""
        for slot in list(self._victims):
            self._drop(slot)

    def __str__(self) -> str:
        seen = ", ".join(f"{slot} {self._entered(slot)} times" for slot in self._since) or "no such slot on the board"
        return (
            f"nobody could be frozen in {self._phase.name.lower()} at entry {self._entry} or later (entered: {seen}; "
            f"{self.freezes} freezes came too late)"
        )

    def _entered(self, slot: Slot) -> int:
        return self._board.entries(slot, self._phase, self._since[slot])

    def _drop(self, slot: Slot) -> None:
        target, victim = self._victims.pop(slot)
        victim.__exit__(None, None, None)
        if target.process not in self._untouchable:
            self._held.process_released(target.process)
