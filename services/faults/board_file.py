"""The phase board's file: a header page that says who has a slot, then one 64-byte slot for every (role, index)."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from services.faults.phases import BOARD_ROLES, BoardRole, Phase

HEADER_BYTES: Final = 4096
SLOT_BYTES: Final = 64
_MAGIC: Final = b"PNBRFLT1"

# 32-bit words of a slot, native order: board and processes are on one machine. Each has one writer, and a word is
# stored whole, so that a reader may see words of different instants but never half a word.
PID: Final = 0
GENERATION: Final = 1
START_LOW: Final = 2
START_HIGH: Final = 3
PHASE: Final = 4
POISON_ASKED: Final = 5
"""Written by the injector, all others by the owner."""
POISON_TAKEN: Final = 6
ENTRIES: Final = 8
"""First of one counter a phase; they wrap, and go on over the incarnations of a role instance."""
MASK: Final = 0xFFFFFFFF


class BoardError(ValueError):
    """The file is no phase board, or has no such slot."""


class BoardFile:
    """A mapped board. ``words(role, index)`` is a slot as sixteen 32-bit words."""

    def __init__(self, path: str | Path) -> None:
        """Map an existing board.

        Raises:
            FileNotFoundError: there is none.
            BoardError: the file is something else.
        """
        self.path = str(path)
        with open(path, "r+b") as file:
            header = file.read(HEADER_BYTES)
            if not header.startswith(_MAGIC):
                raise BoardError(f"{path}: no phase board (it begins with {header[:8]!r}, not {_MAGIC!r})")
            fields = json.loads(header[len(_MAGIC) :].rstrip(b"\0"))
            self.machine: str = fields["machine"]
            self.roles: dict[BoardRole, int] = fields["roles"]
            expected = HEADER_BYTES + SLOT_BYTES * sum(self.roles.values())
            if (size := os.fstat(file.fileno()).st_size) != expected:
                raise BoardError(f"{path}: {size} bytes, its header says {expected}: not written by create_board")
            self._map = mmap.mmap(file.fileno(), expected)
        self._view = memoryview(self._map).cast("I")
        starts, first = {}, HEADER_BYTES
        for role, count in self.roles.items():
            starts[role] = first
            first += count * SLOT_BYTES
        self._starts = starts

    @property
    def is_here(self) -> bool:
        """Whether it was made on this machine, in this pid namespace; elsewhere its pids mean nothing."""
        return self.machine == _machine()

    def words(self, role: BoardRole, index: int) -> memoryview:
        """A slot.

        Raises:
            BoardError: the board has none for it.
        """
        if not 0 <= index < self.roles.get(role, 0):
            have = ", ".join(f"{count} × {name}" for name, count in self.roles.items())
            raise BoardError(f"{self.path}: no slot for {role}-{index}; it was created for {have}")
        first = (self._starts[role] + index * SLOT_BYTES) // 4
        return self._view[first : first + SLOT_BYTES // 4]


def create_board(path: str | Path, roles: Mapping[BoardRole, int]) -> None:
    """Make the board of a run, or keep the one that is there (a coordinator that was restarted finds its own).

    Args:
        path: the file; its directory is made.
        roles: how many slots each role gets: as many as it can ever have at the same time.

    Raises:
        BoardError: an unknown role, too many of them, or the board there has fewer slots.
    """
    unknown = sorted(set(roles) - set(BOARD_ROLES))
    if unknown:
        raise BoardError(f"{path}: no such role: {', '.join(unknown)}; there are {', '.join(BOARD_ROLES)}")
    path = Path(path)
    if path.exists():
        board = BoardFile(path)
        if not board.is_here:
            raise BoardError(f"{path} was made on another machine or since a reboot; delete it")
        if any(board.roles.get(role, 0) < count for role, count in roles.items()):
            raise BoardError(f"{path} has slots for {board.roles}, wanted are {dict(roles)}; delete it between runs")
        return
    text = json.dumps({"machine": _machine(), "phases": [phase.name for phase in Phase], "roles": dict(roles)})
    header = (_MAGIC + text.encode()).ljust(HEADER_BYTES, b"\0")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(header + bytes(SLOT_BYTES * sum(roles.values())))
    os.replace(temporary, path)


def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"
