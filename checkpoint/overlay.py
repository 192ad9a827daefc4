"""Overlay: a piece's rows as they were at a consistent cut, kept when they are updated before they are copied."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from checkpoint.piece_rows import PieceRows

SLOT_BYTES: Final = 4
"""What the overlay costs for each row that is to be saved, however few are kept."""


class KeptRows(NamedTuple):
    """Rows that were kept out of a range to copy."""

    positions: Tensor
    """int64, ascending, relative to the range's start."""
    slots: Tensor
    """Where they are kept."""


class Overlay:
    """Kept rows of one piece, addressed by *position*: the row id, or its place among the selected ids.

    Args:
        rows: live tensors.
        selected: local ids to save, ascending; ``None``: all.
        capacity_bytes: most that can be kept. It is reserved, and costs memory as it fills.
    """

    def __init__(self, rows: PieceRows, selected: Tensor | None, capacity_bytes: int) -> None:
        self._selected = selected
        total = rows.weights.shape[0] if selected is None else selected.numel()
        self._slots = torch.zeros(total, dtype=torch.int32)  # 0: not kept; else the slot + 1; untouched pages are free
        self._live = {"weight": rows.weights, **{f"state.{name}": state for name, state in rows.states.items()}}
        self.row_bytes = rows.nbytes // max(1, rows.weights.shape[0])
        room = min(total, capacity_bytes // max(1, self.row_bytes))
        self._kept = {name: torch.empty(room, *live.shape[1:], dtype=live.dtype) for name, live in self._live.items()}
        self._used = 0
        self._copied = 0

    @property
    def bytes(self) -> int:
        """Of the rows kept."""
        return self._used * self.row_bytes

    def missing(self, ids: Tensor) -> Tensor:
        """Unique positions of those ``ids`` that are to be saved, and are neither copied nor kept yet."""
        positions = ids
        if self._selected is not None:
            positions = torch.searchsorted(self._selected, ids).clamp_(max=self._selected.numel() - 1)
            positions = positions[self._selected[positions] == ids]
        missing: Tensor = torch.unique(positions[(positions >= self._copied) & (self._slots[positions] == 0)])
        return missing

    def keep(self, positions: Tensor) -> None:
        """Copy the live rows at ``positions`` (unique, not kept yet, no more than there is room for)."""
        ids = positions if self._selected is None else self._selected[positions]
        end = self._used + positions.numel()
        for name, live in self._live.items():
            torch.index_select(live, 0, ids, out=self._kept[name][self._used : end])
        self._slots[positions] = torch.arange(self._used + 1, end + 1, dtype=torch.int32)
        self._used = end

    def find(self, start: int, end: int) -> KeptRows:
        """What is kept of positions ``[start, end)``."""
        slots = self._slots[start:end]
        positions = slots.nonzero().view(-1)
        return KeptRows(positions, slots[positions].long() - 1)

    def read(self, name: str, slots: Tensor) -> Tensor:
        """Kept rows of tensor ``weight`` or ``state.{name}``."""
        return self._kept[name][slots]

    def mark_copied(self, end: int) -> None:
        """Positions below ``end`` are copied: they need not be kept any more."""
        self._copied = end
