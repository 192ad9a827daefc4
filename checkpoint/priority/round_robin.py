"""Fills a priority save up with rows in turn, so that none is missed for ever."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from checkpoint.priority.tracker import Watched


class RoundRobin:
    """Goes round the rows of every watched piece, a part each time.

    Sub-sampled trackers do not see every row that was touched. What they leave of a save's r·R rows goes to the rows
    next in turn, so the bytes are spent and a row nobody saw is saved all the same, less often. The turn is not kept
    when a process dies, nor taken back when a save fails: its rows come up again.
    """

    def __init__(self, watched: Watched) -> None:
        self._rows = {index: watched.pieces[index].rows for index in watched.indices}
        self._next = dict.fromkeys(watched.indices, 0)

    def fill(self, piece: int, chosen: Tensor, count: int) -> Tensor:
        """``chosen`` (ascending rows of a piece) and rows in turn, ``count`` in all or the whole piece; ascending."""
        total = self._rows[piece]
        count = min(count, total)
        missing = count - chosen.numel()
        if missing <= 0:
            return chosen
        taken = np.zeros(total, np.bool_)
        taken[chosen.numpy()] = True
        turn = (self._next[piece] + np.arange(count)) % total
        added = turn[~taken[turn]][:missing]
        taken[added] = True
        self._next[piece] = int(added[-1] + 1) % total
        return torch.from_numpy(np.flatnonzero(taken))
