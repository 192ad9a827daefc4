"""What the trainer does to pooled rows and their gradients, because only it sees a sample whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.data.batch import Batch


class MeanPooling:
    """Turns sums into means: shards sum, as a row-wise table's shard knows its own part of a bag only.

    Args:
        dims: width D of each of the F features.
        mean: for each feature whether its ids are averaged; the others stay sums.
    """

    def __init__(self, dims: Sequence[int], mean: Sequence[bool]) -> None:
        self._dims = torch.tensor(list(dims), dtype=torch.int64)
        self._total = sum(dims)
        self._sums = torch.tensor([not own for own in mean])

    def scale(self, batch: Batch) -> Tensor | None:
        """B×F float32 to multiply a sample's sums, and its gradients, with; ``None`` when nothing changes.

        One over the number of ids (weights do not count), and one for an empty bag, whose sum is zero as it is.
        """
        if batch.lengths is None:
            return None
        scale = batch.lengths.view(-1, batch.size).clamp(min=1).float().reciprocal_()
        scale[self._sums] = 1.0
        return scale.t()

    def apply(self, scale: Tensor, rows: Tensor) -> None:
        """Multiply ``rows``, B×F×D or B×ΣD, in place."""
        if rows.dim() == 3:
            rows.mul_(scale.unsqueeze(2))
        else:
            rows.mul_(torch.repeat_interleave(scale, self._dims, dim=1, output_size=self._total))
