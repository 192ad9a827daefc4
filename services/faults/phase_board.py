"""PhaseBoard: a role process says in one word of shared memory what it is doing, so that a fault can hit just that."""

from __future__ import annotations

import os
import threading
from pathlib import Path

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
    BoardFile,
)
from services.faults.phases import BoardRole, Phase, Phases
from services.memory.process import identify


class NullPhaseBoard:
    """No board: nothing is written, nothing is ever due."""

    def enter(self, phase: Phase) -> None:
        """Nothing."""

    def poison_due(self) -> bool:
        """Never."""
        return False

    def leave(self) -> None:
        """Nothing."""


class PhaseBoard:
    """One slot of the board, for the process that owns it.

    ``enter`` belongs to one thread; with several the board shows the last one's phase, and counts may be lost.
    ``poison_due`` may be asked by any thread.
    """

    def __init__(self, board: BoardFile, role: BoardRole, index: int, generation: int, pid: int) -> None:
        process = identify(pid)
        self._words = words = board.words(role, index)
        self._lock = threading.Lock()
        words[PID] = 0  # nobody is there while the rest changes
        words[GENERATION] = generation & MASK
        words[START_LOW] = process.start_ticks & MASK
        words[START_HIGH] = process.start_ticks >> 32
        words[POISON_TAKEN] = max(words[POISON_TAKEN], words[POISON_ASKED])  # what the former one did not take is void
        self.enter(Phase.STARTUP)
        words[PID] = pid

    def enter(self, phase: Phase) -> None:
        """Say what begins now: the counter first, so that whoever sees the phase sees it counted."""
        words = self._words
        counter = ENTRIES + phase
        words[counter] = (words[counter] + 1) & MASK
        words[PHASE] = phase

    def poison_due(self) -> bool:
        """Whether the caller must make this batch non-finite. Each request is answered with True once."""
        words = self._words
        if words[POISON_ASKED] <= words[POISON_TAKEN]:
            return False
        with self._lock:
            due: bool = words[POISON_ASKED] > words[POISON_TAKEN]
            if due:
                words[POISON_TAKEN] += 1
            return due

    def leave(self) -> None:
        """Give the slot up, as a spare does that becomes a shard."""
        self._words[PID] = 0


def open_phase_board(
    path: str | Path | None, role: BoardRole, index: int, generation: int, pid: int | None = None
) -> Phases:
    """Take the slot of (role, index), whoever had it before.

    Args:
        path: the board's file; ``None``, or a file that is not there or is another machine's: a null board.
        role: with ``index`` the slot.
        index: shard_id, trainer_id, … from 0.
        generation: of this incarnation.
        pid: whose slot it is; this process, unless it is taken for a child that cannot (the state store's server).

    Raises:
        BoardError: the file is no board, or has no such slot.
        ProcessLookupError: there is no process ``pid``.
    """
    if path is None:
        return NullPhaseBoard()
    try:
        board = BoardFile(path)
    except FileNotFoundError:
        return NullPhaseBoard()
    if not board.is_here:
        return NullPhaseBoard()
    return PhaseBoard(board, role, index, generation, os.getpid() if pid is None else pid)
