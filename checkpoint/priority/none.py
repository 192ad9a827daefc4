"""No priority: for strategies that save every row each time."""

from __future__ import annotations

import torch
from torch import Tensor

from checkpoint.priority.tracker import Rows, Undo, Watched


class NoTracker:
    """Watches nothing, so every piece is saved whole."""

    def __init__(self, watched: Watched) -> None:
        self.watched = Watched(watched.pieces, ())

    def observe(self, ids: Tensor, offsets: Tensor) -> None:
        """Nothing to see."""

    def select(self, piece: int, count: int) -> Tensor:
        """No row matters more than another."""
        return torch.empty(0, dtype=torch.int64)

    def clear(self, piece: int, rows: Rows) -> Undo:
        """Nothing was kept."""
        return Undo(piece, rows, torch.empty(0))

    def give_back(self, undo: Undo) -> None:
        """Nothing was taken."""

    def tensors(self) -> dict[str, Tensor]:
        """None."""
        return {}

    @property
    def overhead_bytes(self) -> int:
        """None."""
        return 0
