"""How encoded ids of many samples become the values and lengths of single batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np

from trainer.data.block import F32, I64, U64, RawBlock
from trainer.data.encoder import FeatureEncoders

_ENCODE_ROWS: Final = 4096  # rows encoded at once: few calls for small batches, yet temporaries stay in the cache


class Ids(NamedTuple):
    """Sparse side of a batch, feature-major: L row ids, F·B lengths, L weights.

    ``lengths`` is ``None`` when every one is 1, ``weights`` when no feature has any.
    """

    values: I64
    lengths: I64 | None = None
    weights: F32 | None = None


class Part(Protocol):
    """n samples of one block whose categories are on their way to ids."""

    @property
    def dense(self) -> F32:
        """Dense features, n×I float32."""

    @property
    def labels(self) -> F32:
        """Labels, n float32."""

    def slice(self, start: int, end: int) -> Part:
        """Samples ``[start, end)``, without a copy where the layout allows."""

    def batches(self, size: int) -> Iterator[Ids]:
        """The ids of the batches that make up this part; n is a multiple of ``size``."""

    def joined(self, others: Sequence[Part]) -> Ids:
        """The ids of one batch made of this part and ``others``."""


@dataclass(slots=True)
class OneHotPart:
    """Raw F×n categories; encoding writes straight into batch order, so whole batches are views of its result."""

    encoders: FeatureEncoders
    dense: F32
    labels: F32
    categories: U64

    def slice(self, start: int, end: int) -> OneHotPart:
        """Views of the samples ``[start, end)``."""
        window = slice(start, end)
        return OneHotPart(self.encoders, self.dense[window], self.labels[window], self.categories[:, window])

    def batches(self, size: int) -> Iterator[Ids]:
        """Encodes some batches at once, as k×F×B."""
        features, rows = self.categories.shape
        step = max(1, _ENCODE_ROWS // size) * size
        for start in range(0, rows, step):
            chunk = self.categories[:, start : start + step]
            stacked = chunk.reshape(features, -1, size).transpose(1, 0, 2)
            for ids in self.encoders.encode_matrix(stacked):
                yield Ids(ids.reshape(-1))

    def joined(self, others: Sequence[Part]) -> Ids:
        """Joins the raw values, then encodes."""
        pieces = [self.categories, *(other.categories for other in others if isinstance(other, OneHotPart))]
        raw = np.concatenate(pieces, axis=1) if others else self.categories
        return Ids(self.encoders.encode_matrix(raw).reshape(-1))


@dataclass(slots=True)
class MultiHotPart:
    """Encoded ids, lengths and sample offsets (n+1) of each feature, and the weights of the ids where there are any."""

    dense: F32
    labels: F32
    ids: list[I64]
    lengths: list[I64]
    offsets: list[I64]
    weights: list[F32] | None = None

    def slice(self, start: int, end: int) -> MultiHotPart:
        """Views of the samples ``[start, end)``."""
        windows = [slice(at[start] - at[0], at[end] - at[0]) for at in self.offsets]
        return MultiHotPart(
            self.dense[start:end],
            self.labels[start:end],
            [ids[window] for ids, window in zip(self.ids, windows, strict=True)],
            [lengths[start:end] for lengths in self.lengths],
            [at[start : end + 1] for at in self.offsets],
            None if self.weights is None else [w[window] for w, window in zip(self.weights, windows, strict=True)],
        )

    def batches(self, size: int) -> Iterator[Ids]:
        """One concatenation per batch: feature-major order leaves no view."""
        for start in range(0, len(self.labels), size):
            yield self.slice(start, start + size).joined(())

    def joined(self, others: Sequence[Part]) -> Ids:
        """One concatenation over features and parts."""
        parts = [self, *(other for other in others if isinstance(other, MultiHotPart))]
        features = range(len(self.ids))
        return Ids(
            np.concatenate([part.ids[f] for f in features for part in parts]),
            np.concatenate([part.lengths[f] for f in features for part in parts]),
            None
            if self.weights is None
            else np.concatenate([part.weights[f] for f in features for part in parts if part.weights is not None]),
        )


def part_of(block: RawBlock, encoders: FeatureEncoders) -> Part:
    """A block in the layout of its categories."""
    categories = block.categories
    if not isinstance(categories, list):
        if encoders.one_hot:
            return OneHotPart(encoders, block.dense, block.labels, categories)
        categories = encoders.spread(categories)
    ids, lengths, offsets = [], [], []
    for f, (values, counts) in enumerate(categories):
        ids.append(encoders.encode_feature(f, values))
        lengths.append(counts)
        offsets.append(np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts))))
    weights = None
    if block.weights is not None:
        ones = (np.ones(len(values), dtype=np.float32) for values in ids)
        weights = [one if own is None else own for own, one in zip(block.weights, ones, strict=True)]
    return MultiHotPart(block.dense, block.labels, ids, lengths, offsets, weights)
