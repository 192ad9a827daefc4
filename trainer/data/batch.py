"""The unit that flows from a reader to a Hogwild thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class RowSpan(NamedTuple):
    """Input rows ``[start, end)`` of one lease that a batch answers for.

    ``rows`` of them are in the batch; the other ``end - start - rows`` were rejected by the reader
    (bad lines) and are accounted as such when the span is committed.
    """

    lease_id: int
    start: int
    end: int
    rows: int


@dataclass(slots=True)
class Batch:
    """One mini-batch of B samples, I dense features and F sparse features.

    Attributes:
        dense: B×I float32, already transformed (missing → 0, negative → 0, ``log1p``).
        labels: B float32, 0 or 1.
        values: L int64 row ids, feature-major (all ids of feature 0 for samples 0…B-1, then feature 1 …),
            the value order of a TorchRec ``KeyedJaggedTensor``.
        lengths: F·B int64, feature-major; ``None`` when every sample has exactly one id in every feature
            (then L = F·B), which lets the hot path skip offsets altogether.
        spans: the input rows this batch answers for; together they cover every leased row once.
        purpose: ``"train"``, ``"eval"`` or ``"predict"``.
        weights: L float32, one for each of ``values``; ``None`` when no feature is weighted.
        rows: B int64, the input row of each sample; only where it is to be predicted.
    """

    dense: Tensor
    labels: Tensor
    values: Tensor
    lengths: Tensor | None
    spans: tuple[RowSpan, ...]
    purpose: str = "train"
    weights: Tensor | None = None
    rows: Tensor | None = None

    @property
    def size(self) -> int:
        """Number of samples B."""
        return int(self.labels.shape[0])

    def offsets(self, features: int) -> Tensor:
        """F·B+1 int64 offsets into ``values`` (``arange`` when every length is one)."""
        if self.lengths is None:
            return torch.arange(features * self.size + 1, dtype=torch.int64)
        offsets = torch.zeros(self.lengths.numel() + 1, dtype=torch.int64)
        torch.cumsum(self.lengths, 0, out=offsets[1:])
        return offsets
