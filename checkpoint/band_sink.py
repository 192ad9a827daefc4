"""What a piece is restored into: bands of columns that know for every row which segment it has come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from checkpoint.errors import CheckpointError
from checkpoint.manifest import Segment
from checkpoint.piece import Piece


def overlap(segment: Segment, piece: Piece) -> bool:
    """Whether they have a row and a column in common."""
    return (
        segment.table == piece.table
        and segment.row_start < piece.row_end
        and piece.row_start < segment.row_end
        and segment.col_start < piece.col_end
        and piece.col_start < segment.col_end
    )


class BandSink:
    """All rows of a piece and as many of its columns as always were saved together.

    Args:
        piece: rows and columns, global.
        tensors: by their name in a segment (``weight``, ``state.…``): rows×columns, or rows. Written in place.
    """

    def __init__(self, piece: Piece, tensors: Mapping[str, Tensor]) -> None:
        self.piece = piece
        self.tensors = tensors
        self.source = torch.full((piece.rows,), -1, dtype=torch.int32)
        """By row: the ordinal of the segment it has come from; a greater one is newer. -1: none yet."""

    def claim(self, segment: Segment, ordinal: int, ids: Tensor | None) -> Claim | None:
        """Take those rows that the band does not have newer; from now on they count as had.

        Args:
            segment: it overlaps, and has all of the band's columns.
            ordinal: its place among all segments by age.
            ids: of its rows if it is sparse, ascending.

        Returns:
            ``None`` when there is nothing to take.
        """
        first, last = max(segment.row_start, self.piece.row_start), min(segment.row_end, self.piece.row_end)
        local: slice | Tensor
        if ids is None:
            begin, end = first - segment.row_start, last - segment.row_start
            local = slice(first - self.piece.row_start, last - self.piece.row_start)
        else:
            begin, end = torch.searchsorted(ids, torch.tensor([first, last])).tolist()
            local = ids[begin:end] - self.piece.row_start
        if begin == end:
            return None
        newer = self.source[local] < ordinal
        keep = None if bool(newer.all()) else newer
        if keep is None:
            self.source[local] = ordinal
        elif isinstance(local, Tensor):
            self.source[local[keep]] = ordinal
        else:
            self.source[local].masked_fill_(keep, ordinal)
        columns = slice(self.piece.col_start - segment.col_start, self.piece.col_end - segment.col_start)
        whole = columns == slice(0, segment.col_end - segment.col_start)
        return Claim(self, begin, end, local, columns, whole, keep)


@dataclass(frozen=True, slots=True)
class Claim:
    """Rows ``[begin, end)`` of a segment for one band."""

    band: BandSink
    begin: int
    end: int
    local: slice | Tensor
    """Rows of the band, ``end - begin`` of them."""
    columns: slice
    """Columns of the segment."""
    whole: bool
    """Those are all its columns."""
    keep: Tensor | None
    """Which of the rows to take; ``None`` for all."""

    def memory(self, name: str, dtype: torch.dtype) -> Tensor | None:
        """The target itself where the bytes of the file can be read straight into it."""
        target = self.band.tensors[name]
        if self.keep is not None or isinstance(self.local, Tensor) or target.dtype != dtype:
            return None
        if target.dim() == 2 and not self.whole:
            return None
        view = target[self.local]
        return view if view.is_contiguous() else None

    def put(self, name: str, first: int, rows: Tensor) -> None:
        """Copy what is claimed of the segment's rows ``[first, first + len(rows))``."""
        begin, end = max(first, self.begin), min(first + rows.shape[0], self.end)
        if begin >= end:
            return
        target = self.band.tensors[name]
        rows = rows[begin - first : end - first]
        if rows.dim() == 2:
            rows = rows[:, self.columns]
        part = slice(begin - self.begin, end - self.begin)
        keep = None if self.keep is None else self.keep[part]
        if isinstance(self.local, Tensor):
            local = self.local[part]
            if keep is not None:
                local, rows = local[keep], rows[keep]
            target.index_copy_(0, local, self._fitting(rows, target.dtype))
        elif keep is None:
            target[self.local][part].copy_(self._fitting(rows, target.dtype))
        else:
            target[self.local][part][keep] = self._fitting(rows[keep], target.dtype)

    def _fitting(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows as ``dtype``.

        Raises:
            CheckpointError: finite values would become infinite.
        """
        converted = rows.to(dtype)
        if dtype == torch.float16 and rows.dtype != dtype and bool((converted.isinf() & rows.isfinite()).any()):
            largest = float(rows[rows.isfinite()].abs().max())
            raise CheckpointError(
                f"{self.band.piece}: values up to {largest:g} were saved, which do not fit rows in fp16 (±65504): "
                "restore with embedding.weights_precision=fp32"
            )
        return converted
