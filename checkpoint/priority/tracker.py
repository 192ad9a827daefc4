"""What every tracker offers a save, and the pieces it watches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from checkpoint.piece import Piece

Rows = Tensor | slice
"""Rows of a piece: ascending unique piece-local ids (int64), or a range of them."""


class TensorSpec(NamedTuple):
    """One flat array that a tracker needs, zeroed at first: ``numel`` items of ``dtype`` (torch's name of it)."""

    dtype: str
    numel: int


class Undo(NamedTuple):
    """What ``clear`` took away from ``rows`` of piece ``piece``; ``values`` are the tracker's own."""

    piece: int
    rows: Rows
    values: Tensor


@dataclass(frozen=True)
class Watched:
    """The pieces of a shard, and which of them a tracker watches (those of prioritized tables).

    A piece that is not watched costs nothing here and is saved whole each time.

    Attributes:
        pieces: of the shard, in the order of its requests.
        indices: of the watched ones among them, ascending.
    """

    pieces: tuple[Piece, ...]
    indices: tuple[int, ...]

    @classmethod
    def of(cls, pieces: Sequence[Piece], tables: Collection[str]) -> Watched:
        """Watch the pieces of ``tables``."""
        return cls(tuple(pieces), tuple(i for i, piece in enumerate(pieces) if piece.table in tables))

    @property
    def rows(self) -> int:
        """Rows of all watched pieces."""
        return sum(self.pieces[index].rows for index in self.indices)

    def split(self, flat: Tensor, sizes: Mapping[int, int]) -> dict[int, Tensor]:
        """Piece index → its part of ``flat``, where watched pieces lie end to end with ``sizes`` items each.

        Raises:
            ValueError: ``flat`` has another number of items.
        """
        if flat.dim() != 1 or flat.numel() != sum(sizes.values()):
            raise ValueError(
                f"a tracker of {sum(sizes.values())} items was given a tensor of shape {tuple(flat.shape)}"
            )
        parts = torch.split(flat, [sizes[index] for index in self.indices]) if self.indices else ()
        return dict(zip(self.indices, parts, strict=True))

    def ranges(self, offsets: Tensor) -> Iterator[tuple[int, slice]]:
        """(piece index, where its ids are) of one request with offsets T·B+1 over all T pieces of the shard."""
        if offsets.numel() <= 1:  # B or T is 0
            return
        edges = offsets.numpy()[:: (offsets.numel() - 1) // len(self.pieces)].tolist()
        for index in self.indices:
            yield index, slice(edges[index], edges[index + 1])


class PriorityTracker(Protocol):
    """Knows which rows of the watched pieces matter most since they were saved. One thread calls it.

    State lives in tensors that somebody else owns, so it survives the process; zeros mean that nothing was seen.
    """

    watched: Watched

    def observe(self, ids: Tensor, offsets: Tensor) -> None:
        """One push was applied: piece-local ids L (int64, checked, duplicates too), offsets T·B+1."""

    def select(self, piece: int, count: int) -> Tensor:
        """At most ``count`` rows of a watched piece, the ones that matter most: ascending local ids (int64)."""

    def clear(self, piece: int, rows: Rows) -> Undo:
        """These rows have just been copied for a save, in the same cut: forget what was seen of them, and only them."""

    def give_back(self, undo: Undo) -> None:
        """The save failed: what ``clear`` took returns, beside what was seen since."""

    def tensors(self) -> dict[str, Tensor]:
        """The state, by the names of its specs."""

    @property
    def overhead_bytes(self) -> int:
        """Bytes of the state."""


def bytes_of(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of all of them."""
    return sum(tensor.nbytes for tensor in tensors.values())


def compact(counts: Tensor) -> Tensor:
    """Counts (int32, none negative) in the smallest type that holds them: most are small, and undoing keeps them."""
    largest = int(counts.max()) if counts.numel() else 0
    dtype = torch.uint8 if largest < 1 << 8 else torch.int16 if largest < 1 << 15 else torch.int32
    return counts.to(dtype, copy=True)
