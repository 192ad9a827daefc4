"""A slab: request slots in memory that one trainer thread and one shard share. Nothing in it is ever serialized.

A slot holds what a request needs (ids, offsets, weights if the data has them) and one row area: the shard writes the
pooled rows there, the trainer later overwrites them with their gradients. The head names who wrote it, so that a shard
refuses a stale one.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from services.identity import Address, StaleGenerationError
from services.memory.header import ArraySpec, Layout
from services.memory.region import Region

_HEAD_ITEMS = 8
_GENERATION, _BATCH, _IDS, _UNIT, _WEIGHTED = range(5)
_ARRAY_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class SlabSlot:
    """One slot, seen from either side."""

    def __init__(self, region: Region, index: int) -> None:
        meta = region.layout.meta
        self.batch_capacity: int = meta["batch"]
        self.ids_capacity: int = meta["ids"]
        self._dim: int = meta["dim"]
        pieces: int = meta["pieces"]
        offsets = pieces * self.batch_capacity + 1
        rows = self.batch_capacity * self._dim
        self._pieces = pieces
        self._head = region.arrays["head"].numpy()[index * _HEAD_ITEMS : (index + 1) * _HEAD_ITEMS]
        self._ids = region.arrays["ids"][index * self.ids_capacity : (index + 1) * self.ids_capacity]
        self._offsets = region.arrays["offsets"][index * offsets : (index + 1) * offsets]
        self._rows = region.arrays["rows"][index * rows : (index + 1) * rows]
        weights = region.arrays.get("weights")
        self._weights = (
            None if weights is None else weights[index * self.ids_capacity : (index + 1) * self.ids_capacity]
        )

    @property
    def holds_weights(self) -> bool:
        """Whether the slab was made with an area for weights."""
        return self._weights is not None

    def prepare(
        self, generation: int, batch: int, ids: int, unit: bool, weighted: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Trainer side: declare a request; returns the ids L, offsets T·B+1 and weights L to fill."""
        head = self._head
        head[_GENERATION], head[_BATCH], head[_IDS], head[_UNIT], head[_WEIGHTED] = (
            generation,
            batch,
            ids,
            unit,
            weighted,
        )
        return self._ids[:ids], self._offsets[: self._pieces * batch + 1], self.weights

    def check(self, generation: int) -> None:
        """Shard side: refuse a slot that an older (or younger) incarnation of the trainer wrote."""
        if int(self._head[_GENERATION]) != generation:
            raise StaleGenerationError.between("a slab slot", int(self._head[_GENERATION]), generation)

    @property
    def batch(self) -> int:
        """Samples B of the request in the slot."""
        return int(self._head[_BATCH])

    @property
    def unit(self) -> bool:
        """True when every sample has exactly one id in every piece: offsets are not written."""
        return bool(self._head[_UNIT])

    @property
    def ids(self) -> Tensor:
        """Ids L of the request."""
        return self._ids[: int(self._head[_IDS])]

    @property
    def offsets(self) -> Tensor:
        """Offsets T·B+1 of the request (meaningless when ``unit``)."""
        return self._offsets[: self._pieces * self.batch + 1]

    @property
    def weights(self) -> Tensor | None:
        """Per-sample weights L of the ids, ``None`` when all are one."""
        if self._weights is None or not self._head[_WEIGHTED]:
            return None
        return self._weights[: int(self._head[_IDS])]

    @property
    def rows(self) -> Tensor:
        """Row area B×ΣD in the wire format."""
        batch = self.batch
        return self._rows[: batch * self._dim].view(batch, self._dim)


def create_slab(
    keeper: str,
    name: str,
    owner: Address,
    *,
    slots: int,
    batch: int,
    ids: int,
    pieces: int,
    dim: int,
    wire: str,
    weighted: bool = False,
) -> Region:
    """Allocate a slab of ``slots`` slots for batches of up to ``batch`` samples and ``ids`` ids."""
    meta: dict[str, Any] = {"slots": slots, "batch": batch, "ids": ids, "pieces": pieces, "dim": dim}
    arrays = {
        "head": ArraySpec("int64", slots * _HEAD_ITEMS),
        "ids": ArraySpec("int64", slots * ids),
        "offsets": ArraySpec("int64", slots * (pieces * batch + 1)),
        "rows": ArraySpec(_ARRAY_TYPES[wire], slots * batch * dim),
    }
    if weighted:
        arrays["weights"] = ArraySpec("float32", slots * ids)
    region = Region.create(keeper, name, Layout(owner=str(owner), meta=meta, arrays=arrays), owner.generation)
    region.mark_ready()
    return region


def slots_of(region: Region) -> list[SlabSlot]:
    """All slots of a slab."""
    return [SlabSlot(region, index) for index in range(region.layout.meta["slots"])]
