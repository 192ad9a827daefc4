"""What a shard keeps in its keeper's memory, and what it can tell about a predecessor that died."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from checkpoint.piece import Piece
from services.identity import Address
from services.memory.header import ArraySpec, Layout
from services.memory.region import Region
from services.shard.tbe import momentum_numel

MARK_IDS = 1 << 22
"""Capacity, in ids, of the update-in-flight mark; its pages cost nothing until a push that large arrives."""

_ROW_TYPES = {"fp32": "float32", "fp16": "float16"}
_ACTIVE, _STREAM, _SEQUENCE, _IDS = range(4)
_PUSHES, _SAMPLES, _LOOKUPS = range(3)


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """What a shard is made of; stored in its memory header, so that an adopter needs nothing else."""

    run: str
    shard_id: int
    pieces: tuple[Piece, ...]
    table_rows: Mapping[str, int]
    table_dims: Mapping[str, int]
    optimizer: str
    eps: float
    seed: int
    streams: int
    weights_precision: str = "fp32"

    def to_meta(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> ShardSpec:
        """Inverse of ``to_meta``."""
        return cls(**{**meta, "pieces": tuple(Piece(**piece) for piece in meta["pieces"])})


@dataclass(frozen=True, slots=True)
class MarkedUpdate:
    """An update that was being applied when its shard died: some of its rows may have it, others not."""

    stream: int
    sequence: int
    rows: Mapping[str, Sequence[int]] | None
    """Global row ids by table; ``None`` when the push was larger than the mark's capacity: any row may be concerned."""


class ShardMemory:
    """Typed access to the arrays of a shard's region."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.spec = ShardSpec.from_meta(region.layout.meta)
        arrays = region.arrays
        self.arrays = arrays
        self.weights = arrays.get("weights", torch.empty(0))  # a shard may own nothing
        self.momentum = arrays.get("momentum1")
        self._applied = arrays["applied"].numpy()
        self._mark = arrays["mark"].numpy()
        self._mark_ids = arrays["mark_ids"]
        self._mark_offsets = arrays["mark_offsets"]
        self._counts = arrays["counts"].numpy()

    @classmethod
    def create(cls, keeper: str, address: Address, spec: ShardSpec) -> ShardMemory:
        """Allocate zeroed memory; the caller initializes the rows and then calls ``region.mark_ready()``."""
        rows = sum(piece.rows for piece in spec.pieces)
        layout = Layout(
            owner=f"{address.role}-{address.index}",
            meta=spec.to_meta(),
            arrays={
                "weights": ArraySpec(_ROW_TYPES[spec.weights_precision], sum(piece.numel for piece in spec.pieces)),
                "momentum1": ArraySpec("float32", momentum_numel(spec.optimizer, spec.pieces)),
                "access_counters": ArraySpec("int32", rows),  # room for MFU; untouched pages take no memory
                "applied": ArraySpec("int64", spec.streams),
                "mark": ArraySpec("int64", 8),
                "mark_ids": ArraySpec("int64", MARK_IDS),
                "mark_offsets": ArraySpec("int64", len(spec.pieces) + 1),
                "counts": ArraySpec("int64", 8),
            },
        )
        return cls(Region.create(keeper, region_name(address), layout, address.generation))

    @classmethod
    def adopt(cls, keeper: str, address: Address) -> ShardMemory:
        """Take over the memory of this shard's former, dead incarnation."""
        return cls(Region.adopt(keeper, region_name(address), address.generation))

    def last_applied(self, stream: int) -> int:
        """Sequence number of the last push of ``stream`` whose update is complete."""
        return int(self._applied[stream])

    def begin_update(self, stream: int, sequence: int, ids: Tensor, offsets: Tensor) -> None:
        """Mark a push as being applied: from here until ``end_update`` a death may leave it half done."""
        mark, count = self._mark, ids.numel()
        if count <= MARK_IDS:
            self._mark_ids[:count].copy_(ids)
            self._mark_offsets.copy_(offsets[:: (offsets.numel() - 1) // len(self.spec.pieces)])
        mark[_STREAM], mark[_SEQUENCE], mark[_IDS] = stream, sequence, count
        mark[_ACTIVE] = 1

    def end_update(self, stream: int, sequence: int, samples: int) -> None:
        """Record the push as applied, once and for all."""
        self._applied[stream] = sequence
        self._counts[_PUSHES] += 1
        self._counts[_SAMPLES] += samples
        self._mark[_ACTIVE] = 0

    def marked_update(self) -> MarkedUpdate | None:
        """The update the former incarnation was applying when it died, if any."""
        mark = self._mark
        stream, sequence = int(mark[_STREAM]), int(mark[_SEQUENCE])
        if not mark[_ACTIVE] or self.last_applied(stream) >= sequence:
            return None
        count = int(mark[_IDS])
        if count > MARK_IDS:
            return MarkedUpdate(stream, sequence, None)
        offsets = self._mark_offsets.tolist()
        rows: dict[str, list[int]] = {}
        for index, piece in enumerate(self.spec.pieces):
            ids = torch.unique(self._mark_ids[offsets[index] : offsets[index + 1]]) + piece.row_start
            rows.setdefault(piece.table, []).extend(ids.tolist())
        return MarkedUpdate(stream, sequence, rows)

    def clear_mark(self) -> None:
        """Forget the marked update (after it was reported)."""
        self._mark[_ACTIVE] = 0

    def count_lookup(self) -> None:
        """Count one lookup request."""
        self._counts[_LOOKUPS] += 1

    @property
    def counts(self) -> dict[str, int]:
        """Pushes and samples applied and lookups answered, over all incarnations that shared this memory."""
        return {
            "pushes": int(self._counts[_PUSHES]),
            "samples": int(self._counts[_SAMPLES]),
            "lookups": int(self._counts[_LOOKUPS]),
        }

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of the rows and of their optimizer state."""
        return {
            "rows_bytes": self.weights.nbytes,
            "optimizer_bytes": 0 if self.momentum is None else self.momentum.nbytes,
        }


def region_name(address: Address) -> str:
    """Name of a shard's region at its keeper: the same for all its generations."""
    return f"{address.role}-{address.index}/rows"
