"""Sub-sampling of accesses by whole pushes."""

from __future__ import annotations

import random


class PushSampler:
    """Takes one push of every ``every``, at random within each group (seeded).

    A push is read in order where a stride through all of them would touch every cache line anyway: a fourth of the
    pushes costs a fourth, every fourth id of each push about half (docs/decisions.md). Random, because pushes of
    several trainers alternate and a fixed turn would see only one of them.
    """

    def __init__(self, every: int, seed: int) -> None:
        if every < 1:
            raise ValueError(f"pushes are sampled every 1 or more, got {every}")
        self._every, self._random = every, random.Random(seed)
        self._left, self._turn = every, self._random.randrange(every)

    def take(self) -> bool:
        """Whether this push is one to look at."""
        self._left -= 1
        taken = self._left == self._turn
        if not self._left:
            self._left, self._turn = self._every, self._random.randrange(self._every)
        return taken
