"""A trainer's dense parameters and optimizer state in its keeper's memory: one flat buffer each."""

from __future__ import annotations

from torch import Tensor, nn

from services.identity import Address
from services.memory.descriptors import request
from services.memory.header import ArraySpec, Layout
from services.memory.region import Region
from trainer.dense_optimizer import DenseOptimizer
from trainer.flat_parameters import FlatLayout


class DenseMemory:
    """``weights`` and ``state``, both 1-D float32, shared by the trainer's threads and by its successor."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self.weights: Tensor = region.arrays["weights"]
        self.state: Tensor = region.arrays.get("state", self.weights[:0])

    @classmethod
    def create(
        cls, keeper: str, address: Address, module: nn.Module, layout: FlatLayout, optimizer: DenseOptimizer
    ) -> DenseMemory:
        """Allocate, and start from ``module``'s weights and zero state."""
        memory = Layout(
            owner=f"{address.role}-{address.index}",
            meta={"layout": layout.to_json(), "optimizer": optimizer.kind},
            arrays={
                "weights": ArraySpec("float32", layout.numel),
                "state": ArraySpec("float32", optimizer.state_numel(layout.numel)),
            },
        )
        dense = cls(Region.create(keeper, region_name(address), memory, address.generation))
        layout.copy_from(module, dense.weights)
        dense._region.mark_ready()
        return dense

    @classmethod
    def adopt(cls, keeper: str, address: Address, layout: FlatLayout) -> DenseMemory:
        """Go on with the dense parameters of the dead former generation.

        Raises:
            ValueError: its memory holds another model.
        """
        region = Region.adopt(keeper, region_name(address), address.generation)
        if FlatLayout.from_json(region.layout.meta["layout"]) != layout:
            raise ValueError(f"{address}: the memory of the former generation holds a model of another shape")
        return cls(region)

    @staticmethod
    def discard(keeper: str, address: Address) -> None:
        """Have the keeper let go of memory that a dead former generation never completed, so that its name is free."""
        request(keeper, {"op": "release", "name": region_name(address)})


def region_name(address: Address) -> str:
    """Name of a trainer's dense region at its keeper: the same for all its generations."""
    return f"{address.role}-{address.index}/dense"
