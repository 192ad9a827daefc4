"""What an embedding shard does, without the actor around it: lookups, numbered pushes, adoption."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from checkpoint.piece import Piece
from checkpoint.restore import RestoreReport
from checkpoint.row_init import initial_rows
from services.identity import Address
from services.shard.memory import MarkedUpdate, ShardMemory, ShardSpec
from services.shard.restoring import RestoreOrder, fill
from services.shard.tbe import PieceTable

SEQUENCE_BITS = 40
"""A push number is (trainer generation << SEQUENCE_BITS) | count: a new trainer's pushes follow its predecessor's."""

_CONVERTED_FLOATS = 1 << 20


class ShardCore:
    """Rows and optimizer state of one shard. Not thread-safe: the server around it lets one request in at a time."""

    def __init__(self, memory: ShardMemory) -> None:
        self.memory = memory
        spec = memory.spec
        self._table = PieceTable(spec.pieces, spec.optimizer, spec.eps, memory.arrays) if spec.pieces else None
        self._ones = torch.zeros(0, dtype=torch.int64)
        self.before_update: Callable[[Tensor, list[int]], None] | None = None
        """Called with the ids L of a push and where each piece's begin (T+1), while a consistent save is copied."""

    @classmethod
    def create(cls, keeper: str, address: Address, spec: ShardSpec) -> ShardCore:
        """Allocate and initialize: rows by (seed, table, row), so that every placement starts equal."""
        memory = ShardMemory.create(keeper, address, spec)
        _initialize_all(memory)
        memory.tracking.start()
        memory.region.mark_ready()
        return cls(memory)

    @classmethod
    def restored(
        cls, keeper: str, address: Address, spec: ShardSpec, order: RestoreOrder
    ) -> tuple[ShardCore, RestoreReport | None]:
        """Allocate and restore; with no save at all, the rows are those of the beginning.

        Raises:
            CheckpointError: the saves cannot be read.
        """
        memory = ShardMemory.create(keeper, address, spec)
        report = fill(order, memory.pieces)
        if report is None:
            _initialize_all(memory)
        memory.tracking.start()
        memory.region.mark_ready()
        return cls(memory), report

    def roll_back(self, order: RestoreOrder) -> RestoreReport | None:
        """Set the rows back to a save in place; who dies in the middle leaves memory that nobody adopts.

        Raises:
            CheckpointError: the save cannot be read; the rows are undefined, and nothing is served.
        """
        memory = self.memory
        memory.region.mark_building()
        report = fill(order, memory.pieces)
        if report is None:
            _initialize_all(memory)
        memory.forget()
        memory.region.mark_ready()
        return report

    @classmethod
    def adopt(cls, keeper: str, address: Address) -> tuple[ShardCore, MarkedUpdate | None]:
        """Warm recovery: go on with the rows of the dead incarnation, without the update it died in, if any."""
        memory = ShardMemory.adopt(keeper, address)
        if memory.saving:
            memory.tracking.distrust()
            memory.saving = False
        return cls(memory), memory.undo_marked_update()

    @property
    def total_dim(self) -> int:
        """Columns ΣD of a pooled answer."""
        return self._table.total_dim if self._table else 0

    def unit_offsets(self, batch: int) -> Tensor:
        """Offsets T·B+1 of a request with exactly one id everywhere (a view of a reused ``arange``)."""
        count = batch * len(self.memory.spec.pieces) + 1
        if self._ones.numel() < count:
            self._ones = torch.arange(count, dtype=torch.int64)
        return self._ones[:count]

    def lookup(self, ids: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Pooled rows B×ΣD (float32) for piece-local ids L, offsets T·B+1 and, if any, weights L.

        Raises:
            IdRangeError: an id lies outside its piece.
            ValueError: there are not as many weights as ids.
        """
        assert self._table is not None
        self._table.check(ids, offsets)
        _check_weights(ids, weights)
        self.memory.count_lookup()
        return self._table.lookup(ids, offsets, weights)

    def push(
        self,
        stream: int,
        sequence: int,
        grad: Tensor,
        ids: Tensor,
        offsets: Tensor,
        learning_rate: float,
        weights: Tensor | None = None,
    ) -> bool:
        """Apply one numbered push exactly once; False when it (or a younger one of its stream) was applied before.

        Args:
            stream: which worker thread of which trainer numbers it.
            sequence: number, growing within the stream.
            grad: B×ΣD float32 gradient of the pooled rows.
            ids: L piece-local ids.
            offsets: T·B+1.
            learning_rate: of this update.
            weights: L float32 per-sample weights of the lookup, ``None`` when all are one.

        Raises:
            IdRangeError: an id lies outside its piece; nothing was written.
            ValueError: the gradient has another shape, or weights another number; nothing was written.
        """
        memory = self.memory
        if sequence <= memory.last_applied(stream):
            return False
        assert self._table is not None
        self._table.check(ids, offsets)
        shape = ((offsets.numel() - 1) // len(memory.spec.pieces), self._table.total_dim)
        if grad.shape != shape:  # fbgemm would read past its end
            raise ValueError(f"push {sequence} of stream {stream}: gradient is {tuple(grad.shape)}, expected {shape}")
        _check_weights(ids, weights)
        if self.before_update is not None:
            self.before_update(ids, memory.starts(offsets))
        memory.begin_update(stream, sequence, ids, offsets)
        self._table.update(grad, ids, offsets, learning_rate, weights)
        memory.end_update(stream, sequence, grad.shape[0])
        return True


def _initialize_all(memory: ShardMemory) -> None:
    for rows in memory.pieces:
        _initialize(memory.spec, rows.piece, rows.weights)
        for state in rows.states.values():
            state.zero_()


def _initialize(spec: ShardSpec, piece: Piece, out: Tensor) -> None:
    """Fill ``out`` (rows×dim of the piece); rows of another type are drawn in float32, a part at a time."""
    step = piece.rows if out.dtype == torch.float32 else max(1, _CONVERTED_FLOATS // piece.dim)
    for row in range(0, piece.rows, step):
        part = out[row : row + step]
        drawn = initial_rows(
            spec.seed,
            piece.table,
            spec.table_rows[piece.table],
            spec.table_dims[piece.table],
            piece.row_start + row,
            piece.row_start + row + part.shape[0],
            piece.col_start,
            piece.col_end,
            out=part.numpy() if out.dtype == torch.float32 else None,
        )
        if out.dtype != torch.float32:
            part.copy_(torch.from_numpy(drawn))


def _check_weights(ids: Tensor, weights: Tensor | None) -> None:
    if weights is not None and weights.numel() != ids.numel():  # fbgemm would read past their end
        raise ValueError(f"{weights.numel()} per-sample weights for {ids.numel()} ids")
