"""Who can be hit: the processes on the phase board, or, without one, the shards that the run's events name."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple, Protocol

from services.faults.board_reader import BoardReader, Slot
from services.faults.phases import BOARD_ROLES, BoardRole, Phase
from services.faults.run_files import Lines, fault_files
from services.memory.process import ProcessIdentity, identify, is_alive


class Target(NamedTuple):
    """A living process."""

    slot: Slot
    generation: int
    process: ProcessIdentity


class Targets(Protocol):
    """Finds processes."""

    def living(self, role: BoardRole, index: int | None) -> list[Target]:
        """Processes of a role (``None``: any index) that are alive now."""


class BoardTargets:
    """From the board, which knows start times: nobody else can be meant."""

    def __init__(self, board: BoardReader) -> None:
        self._board = board

    def living(self, role: BoardRole, index: int | None) -> list[Target]:
        """As ``Targets.living``."""
        found = []
        for slot in self._board.slots:
            occupant = self._board.occupant(slot) if slot.role == role and index in (None, slot.number) else None
            if occupant is not None and is_alive(occupant.process):
                found.append(Target(slot, occupant.generation, occupant.process))
        return found


class EventTargets:
    """From ``events.jsonl``: its pids are believed if the process began before the event was written."""

    def __init__(self, run_dir: Path) -> None:
        self._lines = Lines(run_dir / "events.jsonl")
        self._targets: dict[Slot, Target] = {}

    def living(self, role: BoardRole, index: int | None) -> list[Target]:
        """As ``Targets.living``."""
        for event in self._lines.new():
            pids = event.get("pids") if event["kind"] == "loaded" else None
            if event["kind"] == "adopted":
                pids = {str(event["address"]): event["pid"]}
            for address, pid in (pids if isinstance(pids, dict) else {}).items():
                self._believe(address, int(pid), float(str(event["time"])))
        return [
            target
            for slot, target in sorted(self._targets.items())
            if slot.role == role and index in (None, slot.number) and is_alive(target.process)
        ]

    def _believe(self, address: str, pid: int, time_s: float) -> None:
        name, _, generation = address.partition(".g")
        role, _, number = name.rpartition("-")
        if role not in BOARD_ROLES:
            return
        slot = Slot(role, int(number))
        try:
            process = identify(pid)
        except ProcessLookupError:
            self._targets.pop(slot, None)
            return
        if _began_s(process) <= time_s:
            self._targets[slot] = Target(slot, int(generation), process)
        else:
            self._targets.pop(slot, None)


def find_targets(run_dir: Path) -> tuple[Targets, BoardReader | None] | None:
    """The board if there is one, else the events once shards are loaded; ``None`` while there is neither."""
    board_path = fault_files(run_dir).board
    if board_path.exists():
        board = BoardReader(board_path)
        return BoardTargets(board), board
    loaded = any(event["kind"] == "loaded" for event in Lines(run_dir / "events.jsonl").new())
    return (EventTargets(run_dir), None) if loaded else None


def phase_of(board: BoardReader | None, target: Target) -> Phase | None:
    """What a frozen target is in; ``None`` without a board, or when its slot has another owner by now."""
    occupant = board.occupant(target.slot) if board else None
    return occupant.phase if occupant is not None and occupant.process == target.process else None


def _began_s(process: ProcessIdentity) -> float:
    """Unix time at which it began, to the clock tick."""
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted_s + process.start_ticks / os.sysconf("SC_CLK_TCK")
