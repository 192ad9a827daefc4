"""The keeper: one small actor per node that owns its memory, hands out descriptors, and kills processes on order.

It imports neither torch nor fbgemm, so that there is little in it that can fail.
"""

from __future__ import annotations

import threading
from typing import Any

import ray

from services.faults.phase_board import open_phase_board
from services.identity import Address
from services.lease import Lease
from services.memory.process import ProcessIdentity, identify, kill_and_confirm
from services.memory.store import MemoryStore


@ray.remote(max_restarts=0, num_cpus=0, concurrency_groups={"watch": 1, "kill": 8})
class Keeper:
    """Memory outlives the processes that use it as long as the keeper lives."""

    def __init__(
        self,
        address: Address,
        name: str,
        coordinator: Any,
        heartbeat_s: float,
        lease_s: float,
        board: str | None = None,
    ) -> None:
        address = Address(*address)
        self._phases = open_phase_board(board, address.role, address.index, address.generation)
        self._store = MemoryStore(name)
        self._stopped = threading.Event()
        if coordinator is not None:
            Lease(Address(*address), coordinator, heartbeat_s, lease_s, self._stats)

    def identity(self) -> tuple[int, int]:
        """This process."""
        return identify()

    @ray.method(concurrency_group="kill")
    def kill(self, process: tuple[int, int], grace_s: float = 0.0) -> bool:
        """SIGKILL a process of this node that does not end within ``grace_s``; True when it is seen dead."""
        return kill_and_confirm(ProcessIdentity(*process), grace_s)

    def holds(self, name: str) -> bool:
        """Whether a region is there."""
        return self._store.holds(name)

    def release(self, prefix: str) -> int:
        """Let go of regions by name prefix."""
        return self._store.release(prefix)

    @ray.method(concurrency_group="watch")
    def watch(self) -> None:
        """Pending until the keeper dies."""
        self._stopped.wait()

    def _stats(self) -> dict[str, int]:
        return {"held_bytes": self._store.held_bytes()}
