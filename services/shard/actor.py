"""The embedding shard as a Ray actor.

This module stays light: whoever gets a handle imports it. The heavy part (torch, fbgemm) is imported by the shard's own
process, in its constructor, so that an idle shard is ready to serve.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import ray

from services.identity import Address
from services.lease import Lease
from services.memory.process import identify

if TYPE_CHECKING:
    from services.shard.memory import MarkedUpdate, ShardSpec
    from services.transport.messages import Array, ObjectLookup, ObjectPush, Sender


@ray.remote(max_restarts=0, concurrency_groups={"watch": 1})
class EmbeddingShard:
    """Owns one shard's rows for as long as it lives; the keeper owns the memory for longer."""

    def __init__(self, address: Address, keeper: str, coordinator: Any, heartbeat_s: float, lease_s: float) -> None:
        """Start idle, with everything imported; ``load`` or ``adopt`` gives it rows."""
        from services.shard.server import ShardServer

        self._server = ShardServer(Address(*address), keeper)
        self._stopped = threading.Event()
        self._lease: Lease | None = None
        if coordinator is not None:
            self._lease = Lease(Address(*address), coordinator, heartbeat_s, lease_s, self._server.stats)

    def load(self, spec: ShardSpec) -> tuple[int, int]:
        """Create and initialize the rows; returns this process's identity."""
        self._server.load(spec)
        return identify()

    def adopt(self, address: Address) -> tuple[tuple[int, int], MarkedUpdate | None]:
        """Become ``address`` and take over the memory of its dead former generation; tells which update it died in."""
        marked = self._server.adopt(Address(*address))
        if self._lease is not None:
            self._lease.become(Address(*address))
        return identify(), marked

    def attach_slab(self, trainer: Address, slab_id: int, name: str) -> None:
        """Map a slab that ``trainer`` made for this shard."""
        self._server.attach_slab(trainer, slab_id, name)

    def step_objects(self, sender: Sender, push: ObjectPush | None, lookup: ObjectLookup | None) -> Array | None:
        """Apply the push, then answer the lookup; arrays travel through Ray's object store.

        Returns the pooled rows B×ΣD. Slab requests do not come this way but by the doorbell.
        """
        return self._server.step_objects(sender, push, lookup)

    def read_rows(self) -> dict[str, Array]:
        """Copies of the flat weights and optimizer state, in piece order (for tests and exports of small models)."""
        return self._server.read_rows()

    def last_applied(self, stream: int) -> int:
        """Number of the last push of ``stream`` that was applied."""
        return self._server.last_applied(stream)

    def stats(self) -> dict[str, int]:
        """Pushes, samples and lookups so far, and memory in bytes."""
        return self._server.stats()

    @ray.method(concurrency_group="watch")
    def watch(self) -> None:
        """Pending until the shard dies: the call then fails at once."""
        self._stopped.wait()
