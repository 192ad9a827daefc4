"""Dirty rows: exactly those touched since they were saved, for delta saves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from checkpoint.priority.tracker import Rows, TensorSpec, Undo, Watched, bytes_of

_MARKS = "dirty_rows"


class DirtyRows:
    """One byte a watched row: 1 when it was touched since it was last saved. Exact; 1/d bytes a row byte."""

    def __init__(self, watched: Watched, tensors: Mapping[str, Tensor]) -> None:
        self.watched = watched
        self._flat = tensors[_MARKS]
        self._marks = watched.split(self._flat, {index: watched.pieces[index].rows for index in watched.indices})
        self._arrays = {index: marks.numpy() for index, marks in self._marks.items()}

    @staticmethod
    def tensor_specs(watched: Watched) -> dict[str, TensorSpec]:
        """The arrays to allocate."""
        return {_MARKS: TensorSpec("uint8", watched.rows)}

    def observe(self, ids: Tensor, offsets: Tensor) -> None:
        """Mark the rows of a push."""
        touched = ids.numpy()
        for index, where in self.watched.ranges(offsets):
            self._arrays[index][touched[where]] = 1  # NumPy's stores are faster here than index_fill_

    def select(self, piece: int, count: int | None = None) -> Tensor:
        """All dirty rows of a piece; ``count`` caps them, the lowest first."""
        return torch.from_numpy(np.flatnonzero(self._arrays[piece])[:count])

    def clear(self, piece: int, rows: Rows) -> Undo:
        """These rows are saved."""
        marks = self._marks[piece]
        taken = np.packbits(marks[rows].numpy())
        marks[rows] = 0
        return Undo(piece, rows, torch.from_numpy(taken))

    def give_back(self, undo: Undo) -> None:
        """They are not: what was dirty is so again."""
        marks = self._marks[undo.piece]
        count = marks[undo.rows].numel()
        marks[undo.rows] |= torch.from_numpy(np.unpackbits(undo.values.numpy(), count=count))

    def tensors(self) -> dict[str, Tensor]:
        """The marks of all watched pieces, end to end."""
        return {_MARKS: self._flat}

    @property
    def overhead_bytes(self) -> int:
        """One byte a watched row."""
        return bytes_of(self.tensors())
