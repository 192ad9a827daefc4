"""The coordinator's directory: which incarnation of every role instance is the current one. Pure; not thread-safe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.identity import Address, Role
from services.memory.process import ProcessIdentity


@dataclass(slots=True)
class Entry:
    """One living (or starting) incarnation.

    ``name``: of the Ray actor, which stays when a spare becomes something else. ``ready``: it has what it works with.
    """

    address: Address
    actor: Any
    node_id: str
    process: ProcessIdentity | None = None
    last_heartbeat_s: float = 0.0
    name: str = ""
    ready: bool = False


class Directory:
    """(role, index) → current incarnation. Older generations are refused for ever."""

    def __init__(self) -> None:
        self._entries: dict[tuple[Role, int], Entry] = {}
        self._generations: dict[tuple[Role, int], int] = {}

    def next_address(self, role: Role, index: int) -> Address:
        """Address of a new incarnation: one generation above any before."""
        generation = self._generations.get((role, index), 0) + 1
        self._generations[role, index] = generation
        return Address(role, index, generation)

    def recall(self, address: Address, entry: Entry | None) -> None:
        """After a restart: the newest incarnation there was; ``None``: it is gone."""
        self._generations[address.role, address.index] = address.generation
        if entry is not None:
            self.put(entry)

    def put(self, entry: Entry) -> None:
        """Make ``entry`` the current incarnation."""
        self._entries[entry.address.role, entry.address.index] = entry

    def remove(self, address: Address) -> Entry | None:
        """Forget an incarnation, if it is (still) the current one."""
        entry = self._entries.get((address.role, address.index))
        if entry is None or entry.address != address:
            return None
        return self._entries.pop((address.role, address.index))

    def get(self, role: Role, index: int) -> Entry | None:
        """Current incarnation."""
        return self._entries.get((role, index))

    def knows(self, address: Address) -> bool:
        """True when ``address`` is the current incarnation."""
        entry = self._entries.get((address.role, address.index))
        return entry is not None and entry.address == address

    def all(self, role: Role | None = None) -> list[Entry]:
        """Current incarnations, of one role or all, in a stable order."""
        return [entry for key, entry in sorted(self._entries.items()) if role is None or key[0] == role]

    def heartbeat(self, address: Address, process: ProcessIdentity, now_s: float) -> bool:
        """Note a sign of life; False when the caller is not the current incarnation and must leave."""
        entry = self._entries.get((address.role, address.index))
        if entry is None or entry.address != address:
            return False
        entry.process, entry.last_heartbeat_s = process, now_s
        return True

    def silent(self, now_s: float, timeout_s: float, since_s: float = 0.0) -> list[Entry]:
        """Incarnations that were heard once, but not for ``timeout_s``: stopped or cut off.

        Silence before ``since_s`` does not count.
        """
        heard = [entry for entry in self.all() if entry.last_heartbeat_s]
        return [entry for entry in heard if now_s - max(entry.last_heartbeat_s, since_s) > timeout_s]
