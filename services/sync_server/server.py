"""What the sync server actor serves: exchanges with trainers, with generations checked."""

from __future__ import annotations

import torch

from services.identity import Address, StaleGenerationError
from services.memory.header import ArraySpec, Layout
from services.memory.region import Region
from services.transport.messages import Array, to_array, to_tensor
from sync.easgd import exchange_symmetric


class CenterServer:
    """Holds the centre in FP32. Not thread-safe: exchanges are serialized by the actor, so the centre never tears."""

    def __init__(self, keeper: str) -> None:
        torch.set_num_threads(1)
        self._keeper = keeper
        self._center = torch.zeros(0)
        self._alpha = 0.0
        self._held: torch.Tensor | None = None
        self._trainers: dict[int, int] = {}
        self._slabs: dict[int, torch.Tensor] = {}

    def load(self, weights: Array, alpha: float) -> None:
        """Start with the trainers' common initial weights."""
        self._center, self._alpha = to_tensor(weights).clone(), alpha

    def attach_slab(self, trainer: Address, name: str) -> None:
        """Map the exchange buffer of a trainer on this node."""
        trainer = Address(*trainer)
        self._check(trainer)
        self._slabs[trainer.index] = Region.open(self._keeper, name).arrays["weights"]

    def exchange_slab(self, trainer: Address) -> None:
        """One exchange; the slab's snapshot becomes the difference to subtract."""
        trainer = Address(*trainer)
        self._check(trainer)
        exchange_symmetric(self._center, self._slabs[trainer.index], self._alpha)

    def exchange(self, trainer: Address, snapshot: Array) -> Array:
        """The same for a trainer on another node."""
        self._check(Address(*trainer))
        replica = to_tensor(snapshot).clone()
        exchange_symmetric(self._center, replica, self._alpha)
        return to_array(replica)

    def center(self) -> Array:
        """The centre, P float32."""
        return to_array(self._center)

    def hold_center(self) -> None:
        """Keep the centre as it is now, for a consistent save."""
        self._held = self._center.clone()

    def held_center(self) -> Array:
        """What ``hold_center`` kept, P float32; given out once."""
        if self._held is None:
            raise RuntimeError("the sync server holds no centre: it restarted since the cut of the save")
        held, self._held = self._held, None
        return to_array(held)

    def _check(self, trainer: Address) -> None:
        current = self._trainers.get(trainer.index, 0)
        if trainer.generation < current:
            raise StaleGenerationError.between(f"an exchange of trainer {trainer.index}", trainer.generation, current)
        if trainer.generation > current:
            self._trainers[trainer.index] = trainer.generation
            self._slabs.pop(trainer.index, None)  # the predecessor's: unmapped, or its memory would stay


def exchange_slab_layout(trainer: Address, numel: int) -> Layout:
    """Layout of a trainer's exchange buffer: one snapshot of its dense weights."""
    return Layout(owner=str(trainer), meta={}, arrays={"weights": ArraySpec("float32", numel)})
