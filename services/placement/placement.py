"""The planner's answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from checkpoint.piece import Piece
from services.placement.memory import MemoryEstimate

Sharding = Literal["table_wise", "row_wise", "column_wise"]


class PlacementError(ValueError):
    """The tables cannot be placed; the message has the numbers and what to change."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Who owns what.

    Attributes:
        pieces: shard_id → its pieces, in table order, then by row and column. Every weight is in exactly one piece.
            A shard may own nothing when there are more shards than tables and none is large enough to split.
        sharding: table → how it was placed.
        memory: what it takes.
    """

    pieces: Mapping[int, tuple[Piece, ...]]
    sharding: Mapping[str, Sharding]
    memory: MemoryEstimate
