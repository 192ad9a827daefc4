"""Preserver: copy-before-write for a consistent save, within a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from checkpoint.overlay import SLOT_BYTES, Ids, Overlay
from checkpoint.piece_rows import PieceRows
from checkpoint.save_plan import Chunk


class Preserver:
    """Overlays of all pieces under one bound.

    Args:
        pieces: of the shard.
        selections: ids to save by index of the piece; absent: all.
        capacity_bytes: for kept rows and what it takes to find them.
    """

    def __init__(self, pieces: Sequence[PieceRows], selections: Mapping[int, Ids], capacity_bytes: int) -> None:
        chosen = [selections.get(index) for index in range(len(pieces))]
        rows = sum(piece.piece.rows if ids is None else ids.size for piece, ids in zip(pieces, chosen, strict=True))
        self._capacity = max(0, capacity_bytes - rows * SLOT_BYTES)
        self._overlays: list[Overlay | None] = [
            None if ids is not None and not ids.size else Overlay(piece, ids, self._capacity)
            for piece, ids in zip(pieces, chosen, strict=True)
        ]
        self._used = 0

    def preserve(self, index: int, ids: Ids) -> bool:
        """Keep what is not copied yet of rows ``ids`` of piece ``index``; False, and nothing done, without room."""
        overlay = self._overlays[index]
        if overlay is None:
            return True
        positions = overlay.missing(ids)
        needed = positions.size * overlay.row_bytes
        if self._used + needed > self._capacity:
            return False
        if needed:
            overlay.keep(positions)
            self._used += needed
        return True

    def overlay(self, index: int) -> Overlay:
        """Of a piece that has chunks left to copy."""
        overlay = self._overlays[index]
        assert overlay is not None
        return overlay

    def copied(self, chunk: Chunk, last_of_piece: bool) -> None:
        """A chunk was copied; with the last one the piece's kept rows are given back."""
        overlay = self.overlay(chunk.piece_index)
        overlay.mark_copied(chunk.end)
        if last_of_piece:
            self._used -= overlay.bytes
            self._overlays[chunk.piece_index] = None
