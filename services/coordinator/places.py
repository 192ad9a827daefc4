"""Where the successor of something that died goes: its own node while that lives, else one with room."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import ray

from services.coordinator.directory import Directory, Entry
from services.coordinator.launch import Launcher


class NoPlaceError(RuntimeError):
    """No living node has room."""


class Places:
    """Chooses nodes. Rows count against ``budgets``; what a node has beyond that is not ours to take."""

    def __init__(
        self,
        directory: Directory,
        launcher: Launcher,
        budgets: Mapping[str, int],
        shard_bytes: Callable[[int], int],
    ) -> None:
        """``budgets``: bytes for rows by node; ``shard_bytes``: of a shard's rows and state."""
        self._directory, self._launcher, self._budgets, self._shard_bytes = directory, launcher, budgets, shard_bytes

    def for_shard(self, dead: Entry) -> str:
        """Its own node, or the living one with most room, a spare there preferred.

        Raises:
            NoPlaceError: with the numbers.
        """
        alive = _alive()
        if dead.node_id in alive:
            return dead.node_id
        needed = self._shard_bytes(dead.address.index)
        free = {node: self._free(node) for node in self._budgets if node in alive}
        spares = {spare.node_id for spare in self._directory.all("spare")}
        fitting = [node for node, room in free.items() if room >= needed]
        if not fitting:
            raise NoPlaceError(
                f"shard {dead.address.index} needs {needed:,} bytes of rows and state; free on the living nodes: "
                f"{', '.join(f'{room:,}' for room in free.values()) or 'none lives'} (cluster.memory_budget_bytes)"
            )
        node = max(fitting, key=lambda one: (one in spares, free[one]))
        self._launcher.ensure_keeper(node)
        return node

    def for_trainer(self, dead: Entry) -> str:
        """Its own node, or a living one that has shards."""
        return self._any(dead)

    def for_spare(self, dead: Entry) -> str | None:
        """Its own node; none on one that died."""
        return dead.node_id if dead.node_id in _alive() else None

    def _any(self, dead: Entry) -> str:
        alive = _alive()
        if dead.node_id in alive:
            return dead.node_id
        known = [node for node in self._budgets if node in alive]
        if not known:
            raise NoPlaceError(f"{dead.address}: none of the run's nodes lives")
        used = [entry.node_id for entry in self._directory.all("trainer")]
        node = min(known, key=used.count)
        self._launcher.ensure_keeper(node)
        return node

    def _free(self, node: str) -> int:
        held = sum(
            self._shard_bytes(entry.address.index) for entry in self._directory.all("shard") if entry.node_id == node
        )
        return self._budgets[node] - held


def _alive() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}
