"""What a piece is restored into: bands of columns that know for every row which segment it has come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

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
        self._beyond: list[_Beyond] = []

    def beyond_fp16(self) -> tuple[Tensor, Tensor]:
        """Rows of the band whose newest version does not fit into float16, and the largest absolute value of each."""
        rows, largest = [torch.empty(0, dtype=torch.int64)], [torch.empty(0)]
        for item in self._beyond:
            newest = self.source[item.rows] == item.ordinal
            rows.append(item.rows[newest])
            largest.append(item.largest[newest])
        return torch.cat(rows), torch.cat(largest)

    def note_beyond(self, rows: Tensor, ordinal: int, largest: Tensor) -> None:
        """Rows that became infinite in float16; they do not count once there are newer versions of them.

        Args:
            rows: their numbers in the band.
            ordinal: of the segment that they come from.
            largest: of each, its greatest absolute value as it was saved.
        """
        self._beyond.append(_Beyond(rows, ordinal, largest))

    def claim(self, segment: Segment, ordinal: int, ids: Tensor | None) -> Claim | None:
        """Take those rows that the band does not have newer; from now on they count as had.

        Args:
            segment: it overlaps, and has all of the band's columns.
            ordinal: its place among all segments of the table by age.
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
        return Claim(self, ordinal, begin, end, local, columns, whole, keep)


@dataclass(frozen=True, slots=True)
class Claim:
    """Rows ``[begin, end)`` of a segment for one band."""

    band: BandSink
    ordinal: int
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
        if keep is not None:
            rows = rows[keep]
        if target.dtype == torch.float16 and rows.dtype != torch.float16:
            rows = self._narrowed(rows, part, keep)
        if isinstance(self.local, Tensor):
            local = self.local[part]
            target.index_copy_(0, local if keep is None else local[keep], rows.to(target.dtype))
        elif keep is None:
            target[self.local][part].copy_(rows)
        else:
            target[self.local][part][keep] = rows.to(target.dtype)

    def _narrowed(self, rows: Tensor, part: slice, keep: Tensor | None) -> Tensor:
        """Rows in float16; those that overflow there are noted."""
        narrow = rows.half()
        if bool(narrow.isinf().any()):
            overflowed = (narrow.isinf() & rows.isfinite()).any(1)
            local = self.local
            if not isinstance(local, Tensor):
                local = torch.arange(local.start, local.stop)
            local = local[part] if keep is None else local[part][keep]
            self.band.note_beyond(local[overflowed], self.ordinal, rows[overflowed].abs().amax(1))
        return narrow


class _Beyond(NamedTuple):
    rows: Tensor
    ordinal: int
    largest: Tensor
