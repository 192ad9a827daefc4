"""The embedding shard as a Ray actor.

This module stays light: whoever gets a handle imports it. The heavy part (torch, fbgemm) is imported by the shard's own
process, in its constructor, so that an idle shard is ready to serve.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import ray

from services.identity import Address
from services.lease import Lease
from services.memory.holdings import hand_over
from services.memory.process import identify

if TYPE_CHECKING:
    from checkpoint.manifest import Encoding
    from checkpoint.restore import RestoreReport
    from checkpoint.ticket import SaveTicket
    from services.shard.memory import MarkedUpdate, ShardSpec
    from services.shard.restoring import RestoreOrder
    from services.shard.saver import ShardSaved
    from services.transport.messages import Array, ObjectLookup, ObjectPush, Sender


@ray.remote(max_restarts=0, concurrency_groups={"watch": 1, "save": 1})
class EmbeddingShard:
    """Owns one shard's rows for as long as it lives; the keeper owns the memory for longer."""

    def __init__(
        self,
        address: Address,
        keeper: str,
        coordinator: Any,
        heartbeat_s: float,
        lease_s: float,
        board: str | None = None,
    ) -> None:
        """Start idle, with everything imported; ``load`` or ``adopt`` gives it rows."""
        from services.shard.server import ShardServer

        self._keeper = keeper
        self._server = ShardServer(Address(*address), keeper, board)
        self._stopped = threading.Event()
        self._lease: Lease | None = None
        if coordinator is not None:
            self._lease = Lease(Address(*address), coordinator, heartbeat_s, lease_s, self._server.stats)

    def load(self, spec: ShardSpec, order: RestoreOrder | None = None) -> tuple[tuple[int, int], RestoreReport | None]:
        """Create the rows, first ones or from saves; returns this process's identity and what was restored."""
        return identify(), self._server.load(spec, order)

    def restore(
        self, address: Address, spec: ShardSpec, order: RestoreOrder
    ) -> tuple[tuple[int, int], RestoreReport | None, float]:
        """Become ``address`` with rows from saves, since those of its former generation are gone; also its seconds."""
        started = time.perf_counter()
        report = self._server.restore(Address(*address), spec, order)
        if self._lease is not None:
            self._lease.become(Address(*address))
        return identify(), report, time.perf_counter() - started

    def roll_back(self, order: RestoreOrder, trainers: dict[int, int]) -> RestoreReport | None:
        """Set the rows back to everybody's common save; what older trainers than those given still send is refused."""
        return self._server.roll_back(order, trainers)

    def begin_save(self, ticket: SaveTicket, encoding: Encoding, patience_s: float, copy_share: float) -> None:
        """Begin this shard's part of a save; for a consistent one this is its cut."""
        self._server.begin_save(ticket, encoding, patience_s, copy_share)

    @ray.method(concurrency_group="save")
    def finish_save(self, timeout_s: float) -> ShardSaved:
        """Copy it between requests, and wait until it is durable."""
        return self._server.finish_save(timeout_s)

    def abort_save(self) -> None:
        """Give up the save under way, if any."""
        self._server.abort_save()

    def adopt(self, address: Address) -> tuple[tuple[int, int], MarkedUpdate | None, float]:
        """Become ``address`` and take over the memory of its dead former generation.

        Tells which update it died in, and the seconds it took.
        """
        started = time.perf_counter()
        marked = self._server.adopt(Address(*address))
        if self._lease is not None:
            self._lease.become(Address(*address))
        return identify(), marked, time.perf_counter() - started

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

    def hand_over(self) -> int:
        """Give the node's new keeper the memory this process maps; returns how many regions."""
        return hand_over(self._keeper)

    @ray.method(concurrency_group="watch")
    def watch(self) -> None:
        """Pending until the shard dies: the call then fails at once."""
        self._stopped.wait()
