"""Row-wise Adagrad keeps one state per row and column piece; here a table's column pieces become other ones.

A piece's state is the sum over steps of the mean square of its columns' gradient. Merging takes the mean of the pieces'
sums weighted by their columns: what one state for all those columns would have summed from the same gradients.
Splitting copies: how much each column contributed was never kept. So merged and split again it is another state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

_BLOCK_ROWS: Final = 1 << 18

MERGED: Final = "merged: the mean of the column pieces' sums, weighted by their columns"
SPLIT: Final = "split: every column piece starts from a copy of the wider piece's sum"


def merge(states: Sequence[Tensor], columns: Sequence[int], out: Tensor) -> None:
    """Merge the states of column pieces that lie side by side.

    Equal states stay what they are to the last bit.

    Args:
        states: one float32 tensor of R sums a piece.
        columns: the columns of each piece.
        out: R float32 sums to fill; may be one of ``states``.
    """
    total = sum(columns)
    for start in range(0, out.shape[0], _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        weighted = torch.zeros_like(out[rows], dtype=torch.float64)
        for state, width in zip(states, columns, strict=True):
            weighted.add_(state[rows], alpha=width)
        out[rows].copy_(weighted.div_(total))
