"""Cut: the instant in a shard's history at which rows and their optimizer state were copied together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_CHUNK_BITS: Final = 24


@dataclass(frozen=True, slots=True, order=True)
class Cut:
    """Orders the versions of a row: later timeline first, then the shard's later cut; never the commit time.

    ``timeline`` counts the run's full rollbacks. ``sequence`` is ``first_cut`` of the save plus the number of the
    shard's cut in it.
    """

    timeline: int
    sequence: int


def first_cut(save_sequence: int) -> int:
    """The sequence of a save's first cut: above every cut of every save that was begun before.

    So the rows of a later save are newer whoever wrote them, also where a shard died after its part of a save, its
    successor restored what was there before, and that save was completed all the same.
    """
    return save_sequence << _CHUNK_BITS
