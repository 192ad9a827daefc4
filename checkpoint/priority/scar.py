"""SCAR: the rows that moved farthest since they were saved (Qiao et al., ICML 2019; CPR's variant)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from checkpoint.priority.threshold import largest
from checkpoint.priority.tracker import Rows, TensorSpec, Undo, Watched, bytes_of

_SAVED = "saved_rows"
_CHUNK_NUMEL = 1 << 18


class ScarTracker:
    """Keeps every watched row as it was last saved: as many bytes as the rows themselves, and no cost per access."""

    def __init__(self, watched: Watched, tensors: Mapping[str, Tensor], weights: Sequence[Tensor]) -> None:
        """``weights``: the live rows of all pieces of the shard, rows×dim each."""
        self.watched = watched
        self._weights = weights
        self._flat = tensors[_SAVED]
        sizes = {index: watched.pieces[index].numel for index in watched.indices}
        self._saved = {
            index: part.view(watched.pieces[index].rows, watched.pieces[index].dim)
            for index, part in watched.split(self._flat, sizes).items()
        }

    @staticmethod
    def tensor_specs(watched: Watched, dtype: str) -> dict[str, TensorSpec]:
        """The arrays to allocate, of the rows' ``dtype``."""
        return {_SAVED: TensorSpec(dtype, sum(watched.pieces[index].numel for index in watched.indices))}

    def start(self) -> None:
        """The rows as they are now count as saved: at the start of a run, whose first values are known by its seed."""
        for index, saved in self._saved.items():
            saved.copy_(self._weights[index])

    def observe(self, ids: Tensor, offsets: Tensor) -> None:
        """Nothing: the rows themselves tell."""

    def select(self, piece: int, count: int) -> Tensor:
        """The ``count`` rows with the largest L2 change; rows that did not change are never taken."""
        # Floats that are not negative order like their bits.
        return largest(self.squared_distances(piece).view(torch.int32), count)

    def squared_distances(self, piece: int) -> Tensor:
        """Squared L2 distance of every row of a watched piece to its saved version (R, float32)."""
        weights, saved = self._weights[piece], self._saved[piece]
        distances = torch.empty(saved.shape[0], dtype=torch.float32)
        step = max(1, _CHUNK_NUMEL // saved.shape[1])
        for start in range(0, saved.shape[0], step):
            part = slice(start, start + step)
            change = weights[part].float() - saved[part].float()
            torch.sum(change.square_(), dim=1, out=distances[part])
        return distances

    def clear(self, piece: int, rows: Rows) -> Undo:
        """These rows are saved as they are now."""
        saved = self._saved[piece]
        before = saved[rows].clone()
        saved[rows] = self._weights[piece][rows]
        return Undo(piece, rows, before)

    def give_back(self, undo: Undo) -> None:
        """They are not: the versions before count again."""
        self._saved[undo.piece][undo.rows] = undo.values

    def tensors(self) -> dict[str, Tensor]:
        """The saved rows of all watched pieces, end to end."""
        return {_SAVED: self._flat}

    @property
    def overhead_bytes(self) -> int:
        """As many as the watched rows have."""
        return bytes_of(self.tensors())
