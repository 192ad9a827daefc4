"""Overlay: a piece's rows as they were at a consistent cut, kept when they are updated before they are copied."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from checkpoint.piece_rows import PieceRows

Ids = NDArray[np.int64]

SLOT_BYTES: Final = 4
"""What the overlay costs for each row that is to be saved, however few are kept."""


class KeptRows(NamedTuple):
    """Rows that were kept out of a range to copy."""

    positions: Ids
    """Ascending, relative to the range's start."""
    slots: NDArray[np.int32]
    """Where they are kept."""


class Overlay:
    """Kept rows of one piece, addressed by *position*: the row id, or its place among the selected ids.

    Args:
        rows: live tensors.
        selected: local ids to save, ascending; ``None``: all.
        capacity_bytes: most that can be kept. It is reserved, and costs memory as it fills.
    """

    def __init__(self, rows: PieceRows, selected: Ids | None, capacity_bytes: int) -> None:
        self._selected = selected
        total = rows.piece.rows if selected is None else selected.size
        self._slots = np.zeros(total, np.int32)  # 0: not kept; else the slot + 1; untouched pages are free
        self._live = {"weight": rows.weights.numpy(), **{f"state.{key}": s.numpy() for key, s in rows.states.items()}}
        self.row_bytes = rows.nbytes // rows.piece.rows
        room = min(total, capacity_bytes // self.row_bytes)
        self._kept = {name: np.empty((room, *live.shape[1:]), live.dtype) for name, live in self._live.items()}
        self._used = 0
        self._copied = 0

    @property
    def bytes(self) -> int:
        """Of the rows kept."""
        return self._used * self.row_bytes

    def missing(self, ids: Ids) -> Ids:
        """Unique positions of those ``ids`` that are to be saved, and are neither copied nor kept yet."""
        positions = ids
        if self._selected is not None:
            positions = np.searchsorted(self._selected, ids).clip(max=self._selected.size - 1)
            positions = positions[self._selected[positions] == ids]
        if self._copied:
            positions = positions[positions >= self._copied]
        return np.unique(positions[self._slots[positions] == 0])

    def keep(self, positions: Ids) -> None:
        """Copy the live rows at ``positions`` (unique, not kept yet, no more than there is room for)."""
        ids = positions if self._selected is None else self._selected[positions]
        end = self._used + positions.size
        for name, live in self._live.items():
            np.take(live, ids, axis=0, out=self._kept[name][self._used : end], mode="clip")
        self._slots[positions] = np.arange(self._used + 1, end + 1, dtype=np.int32)
        self._used = end

    def find(self, start: int, end: int) -> KeptRows | None:
        """What is kept of positions ``[start, end)``; ``None`` when nothing is."""
        if not self._used:
            return None
        slots = self._slots[start:end]
        positions = np.flatnonzero(slots)
        return KeptRows(positions, slots[positions] - np.int32(1)) if positions.size else None

    def read(self, name: str, slots: NDArray[np.int32]) -> NDArray[Any]:
        """Kept rows of tensor ``weight`` or ``state.{name}``."""
        return self._kept[name][slots]

    def mark_copied(self, end: int) -> None:
        """Positions below ``end`` are copied: they need not be kept any more."""
        self._copied = end
