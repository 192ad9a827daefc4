"""Cuts the pieces to restore into bands of columns that the saves never split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from checkpoint.band_sink import BandSink, overlap
from checkpoint.errors import CheckpointError
from checkpoint.manifest import Segment, TableSpec
from checkpoint.merge_state import MERGED, SPLIT, merge
from checkpoint.piece import Piece
from checkpoint.piece_rows import PieceRows, state_shapes


@dataclass(frozen=True, slots=True)
class BandedPiece:
    """A piece and its bands, left to right."""

    rows: PieceRows
    bands: tuple[BandSink, ...]
    lossy: tuple[str, ...]
    """What becomes of row-wise state that was kept for other columns."""

    def finish(self) -> None:
        """Merge row-wise state that came band by band.

        Raises:
            CheckpointError: float16 rows were to take values that they cannot hold.
        """
        self._check_range()
        if len(self.bands) == 1:
            return
        columns = [band.piece.dim for band in self.bands]
        for name, state in self.rows.states.items():
            if state.dim() == 1:
                merge([band.tensors[f"state.{name}"] for band in self.bands], columns, state)

    def _check_range(self) -> None:
        rows, largest = map(torch.cat, zip(*(band.beyond_fp16() for band in self.bands), strict=True))
        if len(rows):
            count = int(rows.bincount().count_nonzero())
            raise CheckpointError(
                f"{self.rows.piece}: {count} of {self.rows.piece.rows} rows hold values up to "
                f"{float(largest.max()):g}, and float16 holds up to ±65504; restore them into float32 rows "
                "(embedding.weights_precision: fp32)"
            )

    def newest(self) -> Tensor:
        """By row: ordinal of the newest segment that it has something of; -1 if some band has nothing."""
        sources = (
            torch.stack([band.source for band in self.bands]) if len(self.bands) > 1 else self.bands[0].source[None]
        )
        return torch.where(sources.amin(0) < 0, -1, sources.amax(0))


def cut_into_bands(rows: PieceRows, segments: Iterable[Segment]) -> BandedPiece:
    """The piece cut wherever some segment (of its table) begins or ends within its columns, in rows of its own."""
    piece = rows.piece
    over = [segment for segment in segments if overlap(segment, piece)]
    inside = {edge for segment in over for edge in (segment.col_start, segment.col_end)}
    edges = [piece.col_start, *sorted(e for e in inside if piece.col_start < e < piece.col_end), piece.col_end]
    bands = []
    for start, end in pairwise(edges):
        band = Piece(piece.table, piece.row_start, piece.row_end, start, end)
        columns = slice(start - piece.col_start, end - piece.col_start)
        tensors = {"weight": rows.weights[:, columns]}
        for name, state in rows.states.items():
            if state.dim() == 2:
                tensors[f"state.{name}"] = state[:, columns]
            else:
                tensors[f"state.{name}"] = state if len(edges) == 2 else torch.empty_like(state)
        bands.append(BandSink(band, tensors))
    return BandedPiece(rows, tuple(bands), _lossy(rows, over))


def check_fit(rows: PieceRows, tables: Mapping[str, TableSpec], *, weights_only: bool) -> None:
    """Refuse a piece that the saved table cannot fill; with ``weights_only`` it has no place for state.

    Raises:
        CheckpointError: no such table, rows or columns beyond it, or state of another optimizer.
    """
    piece = rows.piece
    spec = tables.get(piece.table)
    if spec is None:
        raise CheckpointError(f"table {piece.table!r} was never saved; the save has {', '.join(sorted(tables))}")
    if piece.row_end > spec.rows or piece.col_end > spec.dim:
        raise CheckpointError(
            f"{piece} lies outside the saved table of {spec.rows} rows × {spec.dim} columns: the model's tables must "
            "be of the size they were saved with"
        )
    shapes = {} if weights_only else state_shapes(spec.optimizer, piece)
    found = {name: tuple(state.shape) for name, state in rows.states.items()}
    if found != shapes:
        raise CheckpointError(
            f"{piece} was saved under embedding.optimizer={spec.optimizer}, whose state is {shapes or 'none'}, and is "
            f"to be restored into {found or 'none'}: train with the optimizer it was saved with"
        )


def _lossy(rows: PieceRows, segments: Sequence[Segment]) -> tuple[str, ...]:
    if all(state.dim() == 2 for state in rows.states.values()):
        return ()
    piece = rows.piece
    split = any(s.col_start < piece.col_start or s.col_end > piece.col_end for s in segments)
    merged = any(s.col_start > piece.col_start or s.col_end < piece.col_end for s in segments)
    kinds = [text for found, text in ((merged, MERGED), (split, SPLIT)) if found]
    return tuple(f"{piece}: row-wise Adagrad state {text}" for text in kinds)
