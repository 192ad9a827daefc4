"""The sync server as a Ray actor. Light to import (see ``services.shard.actor``)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import ray

from services.faults.phase_board import open_phase_board
from services.identity import Address
from services.lease import Lease
from services.memory.holdings import hand_over
from services.memory.process import identify

if TYPE_CHECKING:
    from services.transport.messages import Array


@ray.remote(max_restarts=0, concurrency_groups={"watch": 1})
class SyncServer:
    """The central dense copy that trainers exchange with (EASGD)."""

    def __init__(
        self,
        address: Address,
        keeper: str,
        coordinator: Any,
        heartbeat_s: float,
        lease_s: float,
        board: str | None = None,
    ) -> None:
        address = Address(*address)
        self._phases = open_phase_board(board, address.role, address.index, address.generation)
        from services.sync_server.server import CenterServer

        self._keeper = keeper
        self._server = CenterServer(keeper)
        self._stopped = threading.Event()
        if coordinator is not None:
            Lease(Address(*address), coordinator, heartbeat_s, lease_s)

    def load(self, weights: Array, alpha: float) -> tuple[int, int]:
        """Start with the trainers' common initial weights; returns this process's identity."""
        self._server.load(weights, alpha)
        return identify()

    def attach_slab(self, trainer: Address, name: str) -> None:
        """Map the exchange buffer of a trainer on this node."""
        self._server.attach_slab(trainer, name)

    def exchange_slab(self, trainer: Address) -> None:
        """One exchange through the slab."""
        self._server.exchange_slab(trainer)

    def exchange(self, trainer: Address, snapshot: Array) -> Array:
        """One exchange through Ray's object store; returns the difference to subtract."""
        return self._server.exchange(trainer, snapshot)

    def center(self) -> Array:
        """The centre, P float32."""
        return self._server.center()

    def hold_center(self) -> None:
        """Keep the centre as it is now, for a consistent save."""
        self._server.hold_center()

    def held_center(self) -> Array:
        """What ``hold_center`` kept, P float32."""
        return self._server.held_center()

    def hand_over(self) -> int:
        """Give the node's new keeper the memory this process maps; returns how many regions."""
        return hand_over(self._keeper)

    @ray.method(concurrency_group="watch")
    def watch(self) -> None:
        """Pending until the server dies."""
        self._stopped.wait()
