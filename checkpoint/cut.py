"""Cut: the instant in a shard's history at which rows and their optimizer state were copied together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Cut:
    """Orders the versions of a row: later timeline first, then the shard's later cut; never the commit time.

    ``timeline`` counts the run's full rollbacks. ``sequence`` is the shard's own counter, one a copied chunk; a shard
    that restores goes on from above every sequence it restored, so that its rows stay newer.
    """

    timeline: int
    sequence: int
