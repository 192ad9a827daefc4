"""MFU: the rows accessed most since they were saved (CPR, arXiv 2011.02999)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from checkpoint.priority.round_robin import RoundRobin
from checkpoint.priority.sampling import PushSampler
from checkpoint.priority.threshold import largest
from checkpoint.priority.tracker import Rows, TensorSpec, Undo, Watched, bytes_of, compact

_COUNTS = "access_counters"
_CAP = 1 << 30


class MfuTracker:
    """One int32 counter a watched row: +1 an access, 0 when that row is saved; others go on, so none starves.

    4/d bytes a row byte. Counting every access would cost a tenth of a shard's lookup and update time
    (`benchmarks.trackers`), so by default the accesses of one push in six count (``every``; 1 counts all, as
    the paper does). Rows that were accessed but never counted are saved in turn, with what the counted ones leave of
    a save.
    """

    def __init__(self, watched: Watched, tensors: Mapping[str, Tensor], *, every: int = 6, seed: int = 0) -> None:
        self.watched, self.every = watched, every
        self._flat = tensors[_COUNTS]
        self._counts = watched.split(self._flat, {index: watched.pieces[index].rows for index in watched.indices})
        self._sampler = PushSampler(every, seed)
        self._turns = RoundRobin(watched)
        self._ones = torch.ones(0, dtype=torch.int32)
        self._since_cap = 0
        self._flat.clamp_(max=_CAP)

    @staticmethod
    def tensor_specs(watched: Watched) -> dict[str, TensorSpec]:
        """The arrays to allocate."""
        return {_COUNTS: TensorSpec("int32", watched.rows)}

    def observe(self, ids: Tensor, offsets: Tensor) -> None:
        """Count the accesses of a push, if it is its turn."""
        if not self._sampler.take():
            return
        if ids.numel() > self._ones.numel():
            self._ones = torch.ones(ids.numel(), dtype=torch.int32)
        for index, where in self.watched.ranges(offsets):
            self._counts[index].scatter_add_(0, ids[where], self._ones[where])
        self._since_cap += ids.numel()
        if self._since_cap > _CAP:  # no counter can have passed 2³¹ since the last time
            self._flat.clamp_(max=_CAP)
            self._since_cap = 0

    def select(self, piece: int, count: int) -> Tensor:
        """The ``count`` most accessed rows; then rows in turn, unless every push counts: no other was touched then."""
        chosen = largest(self._counts[piece], count)
        return chosen if self.every == 1 else self._turns.fill(piece, chosen, count)

    def pending_accesses(self, piece: int) -> int:
        """Accesses of a watched piece's rows since each was saved; an estimate when not every push counts."""
        return int(self._counts[piece].sum(dtype=torch.int64)) * self.every

    def clear(self, piece: int, rows: Rows) -> Undo:
        """Zero the counters of saved rows."""
        counts = self._counts[piece]
        taken = compact(counts[rows])
        counts[rows] = 0
        return Undo(piece, rows, taken)

    def give_back(self, undo: Undo) -> None:
        """Add the old counts to what accumulated since."""
        if isinstance(undo.rows, slice):
            self._counts[undo.piece][undo.rows] += undo.values
        else:
            self._counts[undo.piece].index_add_(0, undo.rows, undo.values.int())

    def tensors(self) -> dict[str, Tensor]:
        """The counters of all watched pieces, end to end."""
        return {_COUNTS: self._flat}

    @property
    def overhead_bytes(self) -> int:
        """4 bytes a watched row."""
        return bytes_of(self.tensors())
