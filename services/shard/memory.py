"""What a shard keeps in its keeper's memory, and what it can tell about a predecessor that died."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from checkpoint.piece import Piece
from checkpoint.piece_rows import PieceRows, state_shapes
from services.identity import Address
from services.memory.header import ArraySpec, Layout
from services.memory.region import Region
from services.shard.tbe import momentum_numel
from services.shard.tracking import Tracking, TrackingSpec
from services.shard.undo import UndoLog

MARK_IDS = 1 << 22
"""Capacity, in ids, of the update-in-flight mark; its pages cost nothing until a push that large arrives."""

_ROW_TYPES = {"fp32": "float32", "fp16": "float16"}
_UNDO_NUMEL = 1 << 23
"""Weights of the largest push that can be taken back: 32 MiB copied, about as much as the update itself would take."""

_ACTIVE, _STREAM, _SEQUENCE, _IDS, _UNDO = range(5)
_PUSHES, _SAMPLES, _LOOKUPS, _ACCESSES, _SAVING = range(5)


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
    tracking: TrackingSpec = field(default_factory=TrackingSpec)

    def to_meta(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> ShardSpec:
        """Inverse of ``to_meta``."""
        pieces = tuple(Piece(**piece) for piece in meta["pieces"])
        tracking = TrackingSpec(**{**meta["tracking"], "tables": tuple(meta["tracking"]["tables"])})
        return cls(**{**meta, "pieces": pieces, "tracking": tracking})


@dataclass(frozen=True, slots=True)
class MarkedUpdate:
    """An update that was being applied when its shard died."""

    stream: int
    sequence: int
    undone: bool
    """Its rows are as they were before it: sent again, it is applied as if nothing had happened."""
    rows: Mapping[str, Sequence[int]] | None
    """Unless ``undone``, the global row ids by table that may have it or not; ``None``: any row may be concerned."""


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
        self._undo = UndoLog(self.spec.pieces, self.spec.optimizer, arrays) if self.spec.pieces else None
        self._counts = arrays["counts"].numpy()
        self.pieces = self._piece_rows()
        self.tracking = Tracking(self.spec.tracking, self.pieces, arrays)

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
                **UndoLog.specs(spec.optimizer, _ROW_TYPES[spec.weights_precision], _UNDO_NUMEL if rows else 0),
                **Tracking.specs(spec.tracking, spec.pieces, _ROW_TYPES[spec.weights_precision]),
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
        """Mark a push as being applied and keep what it will overwrite; ``end_update`` makes it final."""
        mark, count, undo = self._mark, ids.numel(), False
        mark[_ACTIVE] = 0  # of an update that failed with an error: its log is overwritten now
        starts = self.starts(offsets)
        if count <= MARK_IDS:
            self._mark_ids[:count].copy_(ids)
            self._mark_offsets.copy_(torch.tensor(starts))
            assert self._undo is not None
            undo = self._undo.save(ids, starts)
        self._counts[_ACCESSES] += count
        self.tracking.observe(ids, offsets, starts)
        mark[_STREAM], mark[_SEQUENCE], mark[_IDS], mark[_UNDO] = stream, sequence, count, undo
        mark[_ACTIVE] = 1

    def end_update(self, stream: int, sequence: int, samples: int) -> None:
        """Record the push as applied, once and for all."""
        self._applied[stream] = sequence
        self._counts[_PUSHES] += 1
        self._counts[_SAMPLES] += samples
        self._mark[_ACTIVE] = 0

    def undo_marked_update(self) -> MarkedUpdate | None:
        """Take back the update that the former incarnation was applying when it died, if any; tells what it was."""
        mark = self._mark
        stream, sequence = int(mark[_STREAM]), int(mark[_SEQUENCE])
        if not mark[_ACTIVE] or self.last_applied(stream) >= sequence:
            mark[_ACTIVE] = 0
            return None
        marked = self._take_back(stream, sequence, int(mark[_IDS]))
        mark[_ACTIVE] = 0  # only now: who dies in the middle leaves everything for the next to take back again
        return marked

    def _take_back(self, stream: int, sequence: int, count: int) -> MarkedUpdate:
        if count > MARK_IDS:
            return MarkedUpdate(stream, sequence, False, None)
        ids, starts = self._mark_ids[:count], self._mark_offsets.tolist()
        if self._mark[_UNDO]:
            assert self._undo is not None
            self._undo.put_back(ids, starts)
            return MarkedUpdate(stream, sequence, True, {})
        rows: dict[str, list[int]] = {}
        for piece, start, end in zip(self.spec.pieces, starts, starts[1:], strict=False):
            rows.setdefault(piece.table, []).extend((torch.unique(ids[start:end]) + piece.row_start).tolist())
        return MarkedUpdate(stream, sequence, False, rows)

    def starts(self, offsets: Tensor) -> list[int]:
        """Where the ids of each piece begin, T+1, of offsets T·B+1."""
        starts: list[int] = offsets[:: (offsets.numel() - 1) // len(self.spec.pieces)].tolist()
        return starts

    @property
    def saving(self) -> bool:
        """Whether a save is under way; an adopter that finds it so does not know what that one had copied."""
        return bool(self._counts[_SAVING])

    @saving.setter
    def saving(self, under_way: bool) -> None:
        self._counts[_SAVING] = under_way

    def forget(self) -> None:
        """The rows were set back: what was tracked of them, and the mark of an update, no longer count."""
        self._mark[_ACTIVE] = 0
        self.saving = False
        self.tracking.reset()

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
            "accesses": int(self._counts[_ACCESSES]),
            "pending_accesses": self.tracking.pending_accesses,
        }

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of the rows and of their optimizer state."""
        return {
            "rows_bytes": self.weights.nbytes,
            "optimizer_bytes": 0 if self.momentum is None else self.momentum.nbytes,
        }

    def _piece_rows(self) -> tuple[PieceRows, ...]:
        found, weight, state = [], 0, 0
        for piece in self.spec.pieces:
            own = self.weights[weight : weight + piece.numel].view(piece.rows, piece.dim)
            weight += piece.numel
            states = {}
            for name, shape in state_shapes(self.spec.optimizer, piece).items():
                assert self.momentum is not None
                numel = piece.numel if len(shape) == 2 else piece.rows
                states[name] = self.momentum[state : state + numel].view(shape)
                state += numel
            found.append(PieceRows(piece, own, states))
        return tuple(found)


def region_name(address: Address) -> str:
    """Name of a shard's region at its keeper: the same for all its generations."""
    return f"{address.role}-{address.index}/rows"
