"""The sync server as a Ray actor: the central dense copy that trainers exchange with (EASGD)."""

from __future__ import annotations

import threading
from typing import Any

import ray
import torch

from services.identity import Address, StaleGenerationError
from services.lease import Lease
from services.memory.header import ArraySpec, Layout
from services.memory.process import identify
from services.memory.region import Region
from services.transport.messages import Array, to_array, to_tensor
from sync.easgd import exchange_symmetric


@ray.remote(max_restarts=0, concurrency_groups={"watch": 1})
class SyncServer:
    """Holds the centre in FP32; exchanges are serialized (one thread), so the centre never tears."""

    def __init__(self, address: Address, keeper: str, coordinator: Any, heartbeat_s: float, lease_s: float) -> None:
        torch.set_num_threads(1)
        self._address, self._keeper = Address(*address), keeper
        self._center = torch.zeros(0)
        self._alpha = 0.0
        self._trainers: dict[int, int] = {}
        self._slabs: dict[Address, torch.Tensor] = {}
        self._stopped = threading.Event()
        if coordinator is not None:
            Lease(self._address, coordinator, heartbeat_s, lease_s)

    def load(self, weights: Array, alpha: float) -> tuple[int, int]:
        """Start with the trainers' common initial weights."""
        self._center, self._alpha = torch.from_numpy(weights.copy()), alpha
        return identify()

    def attach_slab(self, trainer: Address, name: str) -> None:
        """Map the exchange buffer of a trainer on this node."""
        trainer = Address(*trainer)
        self._check(trainer)
        self._slabs[trainer] = Region.open(self._keeper, name).arrays["weights"]

    def exchange_slab(self, trainer: Address) -> None:
        """One exchange; the slab's snapshot becomes the difference to subtract."""
        trainer = Address(*trainer)
        self._check(trainer)
        exchange_symmetric(self._center, self._slabs[trainer], self._alpha)

    def exchange(self, trainer: Address, snapshot: Array) -> Array:
        """The same for a trainer on another node."""
        self._check(Address(*trainer))
        replica = to_tensor(snapshot).clone()
        exchange_symmetric(self._center, replica, self._alpha)
        return to_array(replica)

    def center(self) -> Array:
        """The centre, P float32."""
        return to_array(self._center)

    @ray.method(concurrency_group="watch")
    def watch(self) -> None:
        """Pending until the server dies."""
        self._stopped.wait()

    def _check(self, trainer: Address) -> None:
        current = self._trainers.get(trainer.index, 0)
        if trainer.generation < current:
            raise StaleGenerationError.between(f"an exchange of trainer {trainer.index}", trainer.generation, current)
        self._trainers[trainer.index] = trainer.generation


def exchange_slab_layout(trainer: Address, numel: int) -> Layout:
    """Layout of a trainer's exchange buffer: one snapshot of its dense weights."""
    return Layout(owner=str(trainer), meta={}, arrays={"weights": ArraySpec("float32", numel)})
