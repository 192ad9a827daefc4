"""SSU: a sub-sampled list of recently used rows (CPR, arXiv 2011.02999)."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from checkpoint.priority.sampling import PushSampler
from checkpoint.priority.tracker import Rows, TensorSpec, Undo, Watched, bytes_of

_LIST = "recent_rows"


class SsuTracker:
    """At most r·R row ids a watched piece, 4 bytes each: r·4/d bytes a row byte.

    The paper leaves duplicates and clearing open; here an id has one place in its list, given by a seeded hash. So
    it is there once, whoever is there before is evicted (at random, as the hash is), and no search is ever needed. The
    price: some places stay empty until about three times as many different rows as places were seen. Saved rows leave
    the list, rows that came in meanwhile stay. The accesses of every ``every``-th push are taken.
    """

    def __init__(
        self, watched: Watched, tensors: Mapping[str, Tensor], fraction: float, *, every: int = 2, seed: int = 0
    ) -> None:
        self.watched = watched
        self._flat = tensors[_LIST]
        sizes = _capacities(watched, fraction)
        # id + 1 is kept, so that zeroed memory is an empty list
        self._lists = {index: part.numpy() for index, part in watched.split(self._flat, sizes).items()}
        self._sampler = PushSampler(every, seed)
        self._random = np.random.default_rng(seed)
        self._multiplier = np.uint32(random.Random(seed).getrandbits(32) | 1)

    @staticmethod
    def tensor_specs(watched: Watched, fraction: float) -> dict[str, TensorSpec]:
        """The arrays to allocate, for lists of ``fraction`` (r) of a piece's rows."""
        return {_LIST: TensorSpec("int32", sum(_capacities(watched, fraction).values()))}

    def observe(self, ids: Tensor, offsets: Tensor) -> None:
        """Put the rows of a push into their lists, if it is its turn."""
        if not self._sampler.take():
            return
        for index, own in self.watched.accesses(ids, offsets):
            rows, places = own.numpy(), self._lists[index]
            places[self._place(rows, places.size)] = rows + 1

    def select(self, piece: int, count: int) -> Tensor:
        """The rows in the list; a random ``count`` of them when there are more."""
        kept = self._lists[piece]
        rows = kept[kept > 0].astype(np.int64) - 1
        if rows.size > count:
            rows = self._random.choice(rows, count, replace=False)
        rows.sort()
        return torch.from_numpy(rows)

    def clear(self, piece: int, rows: Rows) -> Undo:
        """Saved rows leave the list."""
        places = self._lists[piece]
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.watched.pieces[piece].rows)
            held = np.flatnonzero((places > start) & (places <= stop))
        else:
            wanted = rows.numpy()
            candidates = self._place(wanted, places.size)
            held = candidates[places[candidates] == wanted + 1]
        taken = places[held].astype(np.int64) - 1
        places[held] = 0
        return Undo(piece, rows, torch.from_numpy(taken))

    def give_back(self, undo: Undo) -> None:
        """Rows return to their places, unless a younger one is there."""
        places, rows = self._lists[undo.piece], undo.values.numpy()
        target = self._place(rows, places.size)
        free = places[target] == 0
        places[target[free]] = rows[free] + 1

    def tensors(self) -> dict[str, Tensor]:
        """The lists of all watched pieces, end to end."""
        return {_LIST: self._flat}

    @property
    def overhead_bytes(self) -> int:
        """4 bytes a place."""
        return bytes_of(self.tensors())

    def _place(self, rows: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """Where a row belongs: a multiplicative hash (Fibonacci hashing), scaled to the size without a division."""
        mixed = rows.astype(np.uint32)
        mixed *= self._multiplier
        place = np.multiply(mixed, size, dtype=np.uint64)
        place >>= np.uint64(32)
        return place.view(np.int64)


def _capacities(watched: Watched, fraction: float) -> dict[int, int]:
    return {index: max(1, int(fraction * watched.pieces[index].rows)) for index in watched.indices}
