"""The phases of a role process that a fault can be aimed at."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, Protocol, get_args

BoardRole = Literal["coordinator", "keeper", "shard", "spare", "trainer", "sync_server", "state_store"]
"""Everybody who has a slot on the phase board: the roles of ``services.identity``, and the two that are no actors."""

BOARD_ROLES: tuple[BoardRole, ...] = get_args(BoardRole)


class Phase(IntEnum):
    """What a process is doing; the values are the codes on the board and never change."""

    IDLE = 0
    LOOKUP = 1
    UPDATE = 2
    SAVE_COPY = 3
    SAVE_COMMIT = 4
    RESTORE = 5
    STARTUP = 6


PhaseName = Literal["idle", "lookup", "update", "save_copy", "save_commit", "restore", "startup"]


class Phases(Protocol):
    """What a role process calls; ``open_phase_board`` makes one."""

    def enter(self, phase: Phase) -> None:
        """Say what begins now; the end of a phase is ``enter(Phase.IDLE)``."""

    def poison_due(self) -> bool:
        """Whether the caller must make this batch non-finite; to be asked once a batch."""

    def leave(self) -> None:
        """Give the slot up; nothing is aimed at this process from now on."""
