"""SSU: a sub-sampled list of recently used rows (CPR, arXiv 2011.02999)."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from checkpoint.priority.round_robin import RoundRobin
from checkpoint.priority.sampling import PushSampler
from checkpoint.priority.tracker import Rows, TensorSpec, Undo, Watched, bytes_of

_LIST = "recent_rows"
_HALF = np.uint64(32)


class SsuTracker:
    """At most r·R row ids a watched piece, 4 bytes each: r·4/d bytes a row byte.

    The paper leaves duplicates and clearing open; here an id has one place in its list, given by a seeded hash. So
    it is there once, whoever is there before is evicted (at random, as the hash is), and no search is ever needed. The
    price: some places stay empty until about three times as many different rows as places were seen. Saved rows leave
    the list, rows that came in meanwhile stay. The accesses of every ``every``-th push are taken. What the list leaves
    of a save goes to rows in turn.

    Zero is an empty place, so that zeroed memory is an empty list; row 0 is therefore not listed but always selected.
    """

    def __init__(
        self, watched: Watched, tensors: Mapping[str, Tensor], fraction: float, *, every: int = 4, seed: int = 0
    ) -> None:
        self.watched = watched
        self._flat = tensors[_LIST]
        sizes = _capacities(watched, fraction)
        self._lists = {index: part.numpy() for index, part in watched.split(self._flat, sizes).items()}
        self._sizes = {index: np.uint64(size) for index, size in sizes.items()}
        self._sampler = PushSampler(every, seed)
        self._turns = RoundRobin(watched)
        self._random = np.random.default_rng(seed)
        self._multiplier = np.uint64(random.Random(seed).getrandbits(64) | 1)

    @staticmethod
    def tensor_specs(watched: Watched, fraction: float) -> dict[str, TensorSpec]:
        """The arrays to allocate, for lists of ``fraction`` (r) of a piece's rows."""
        return {_LIST: TensorSpec("int32", sum(_capacities(watched, fraction).values()))}

    def observe(self, ids: Tensor, offsets: Tensor) -> None:
        """Put the rows of a push into their lists, if it is its turn."""
        if not self._sampler.take():
            return
        used = ids.numpy()
        for index, where in self.watched.ranges(offsets):
            self._put(index, used[where])

    def recent(self, piece: int) -> Tensor:
        """Row 0 and the rows in the list: ascending local ids (int64)."""
        kept = self._lists[piece]
        rows = np.append(kept[kept > 0].astype(np.int64), 0)
        rows.sort()
        return torch.from_numpy(rows)

    def select(self, piece: int, count: int) -> Tensor:
        """Of the recent rows a random ``count`` when there are more; else all of them, and rows in turn."""
        rows = self.recent(piece)
        if rows.numel() > count:
            chosen = self._random.choice(rows.numpy(), count, replace=False)
            chosen.sort()
            return torch.from_numpy(chosen)
        return self._turns.fill(piece, rows, count)

    def clear(self, piece: int, rows: Rows) -> Undo:
        """Saved rows leave the list."""
        places = self._lists[piece]
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.watched.pieces[piece].rows)
            held = np.flatnonzero((places >= max(1, start)) & (places < stop))
        else:
            wanted = rows.numpy()
            candidates = self._place(piece, wanted)
            held = candidates[places[candidates] == wanted]
        taken = torch.from_numpy(places[held])
        places[held] = 0
        return Undo(piece, rows, taken)

    def give_back(self, undo: Undo) -> None:
        """Rows return to their places, unless a younger one is there."""
        rows = undo.values.numpy().astype(np.int64)
        free = self._lists[undo.piece][self._place(undo.piece, rows)] == 0
        self._put(undo.piece, rows[free])

    def tensors(self) -> dict[str, Tensor]:
        """The lists of all watched pieces, end to end."""
        return {_LIST: self._flat}

    @property
    def overhead_bytes(self) -> int:
        """4 bytes a place."""
        return bytes_of(self.tensors())

    def _put(self, piece: int, rows: NDArray[np.int64]) -> None:
        # Two steps: a cast inside the indexed assignment makes it half as fast.
        self._lists[piece][self._place(piece, rows)] = rows.astype(np.int32)

    def _place(self, piece: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where a row belongs: a multiplicative hash (Fibonacci hashing), scaled to the list without a division."""
        place: NDArray[np.uint64] = rows.view(np.uint64) * self._multiplier
        place >>= _HALF
        place *= self._sizes[piece]
        place >>= _HALF
        return place.view(np.int64)


def _capacities(watched: Watched, fraction: float) -> dict[int, int]:
    return {index: max(1, int(fraction * watched.pieces[index].rows)) for index in watched.indices}
