"""The planted click model behind ``penumbra synth``: what each row is and how likely it is a click."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trainer.data.block import I64, U64
from trainer.data.hashing import mix64

F64 = NDArray[np.float64]

TABLE_ROWS: Final = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Distinct values of C1…C26 in the Kaggle training set, as published with facebookresearch/dlrm."""

CHUNK_ROWS: Final = 16_384
BASE_RATE: Final = 0.256
MAX_COUNT: Final = 9_999_999

_LOGIT_SD: Final = 1.35  # with the base rate this puts the Bayes AUC near 0.80, where Criteo models end
_ZIPF: Final = 1.2
_TAIL_ID: Final = 2000.0  # ids beyond this rank say less and less: they are too rare to be learnt from
_PAIRS: Final = ((2, 3), (0, 6), (9, 16), (4, 25), (7, 19), (13, 23))
_MISSING_DENSE: Final = (0.45, 0.0, 0.21, 0.21, 0.03, 0.22, 0.04, 0.001, 0.04, 0.45, 0.04, 0.76, 0.21)
_MISSING_SPARSE: Final = {2: 0.034, 3: 0.034, 11: 0.034, 15: 0.034, 18: 0.44, 19: 0.44, 20: 0.034, 21: 0.76, 23: 0.034,
                          24: 0.44, 25: 0.44}  # fmt: skip
_DENSE_MEAN: Final = np.array([0.9, 2.6, 1.9, 1.6, 8.1, 3.6, 1.7, 1.9, 3.8, 0.4, 0.9, 0.3, 1.7])
_DENSE_SD: Final = np.array([0.9, 1.7, 1.2, 0.9, 2.0, 1.5, 1.1, 1.0, 1.4, 0.4, 0.7, 0.5, 0.9])


@dataclass(frozen=True, slots=True)
class SynthRows:
    """n rows with the truth behind them.

    Attributes:
        counts: n×13 int64, may be negative; 0 where missing.
        counts_missing: n×13 bool.
        categories: 26×n uint64 below 2^32; 0 where missing.
        categories_missing: 26×n bool.
        labels: n uint8.
        probabilities: n float64, of a click.
    """

    counts: I64
    counts_missing: NDArray[np.bool_]
    categories: U64
    categories_missing: NDArray[np.bool_]
    labels: NDArray[np.uint8]
    probabilities: F64

    def slice(self, start: int, end: int) -> SynthRows:
        """Views of the rows ``[start, end)``."""
        window = slice(start, end)
        return SynthRows(
            self.counts[window],
            self.counts_missing[window],
            self.categories[:, window],
            self.categories_missing[:, window],
            self.labels[window],
            self.probabilities[window],
        )


class PlantedModel:
    """Draws rows; weights come from hashes of (seed, feature, id), so no table is stored.

    logit = bias + scale · (weight of each id + products of two ids' weights + linear and bent dense terms); bias and
    scale are set on the first chunk, so that base rate and difficulty are the same for every seed and table size.
    """

    def __init__(self, seed: int, max_table_rows: int) -> None:
        """Tables have the published sizes, at most ``max_table_rows``."""
        self.tables = tuple(min(rows, max_table_rows) for rows in TABLE_ROWS)
        self._seed = seed
        rng = np.random.default_rng([seed, 1])
        self._dense_weights = rng.normal(0, 0.2, len(_DENSE_MEAN))
        self._keys = mix64(np.arange(3 * len(TABLE_ROWS), dtype=np.uint64) + np.uint64(rng.integers(2**62)))
        self._bias, self._scale = 0.0, 1.0
        raw = self._raw_logits(*self._draw(np.random.default_rng([seed, 2]), CHUNK_ROWS))
        self._scale = _LOGIT_SD / float(raw.std())
        self._bias = _bias_for(raw * self._scale, BASE_RATE)

    def chunks(self, rows: int) -> Iterator[SynthRows]:
        """``rows`` rows in chunks of ``CHUNK_ROWS``, each from a random stream of its own."""
        for number, start in enumerate(range(0, rows, CHUNK_ROWS)):
            rng = np.random.default_rng([self._seed, 3, number])
            drawn = self._draw(rng, min(CHUNK_ROWS, rows - start))
            logits = self._raw_logits(*drawn) * self._scale + self._bias
            probabilities = 1.0 / (1.0 + np.exp(-logits))
            labels = (rng.random(logits.size) < probabilities).astype(np.uint8)
            counts, counts_missing, ids, ids_missing = drawn
            categories = _scramble(ids, np.arange(len(ids), dtype=np.uint64)[:, None])
            categories[ids_missing] = 0
            yield SynthRows(counts, counts_missing, categories, ids_missing, labels, probabilities)

    def _draw(self, rng: np.random.Generator, rows: int) -> tuple[I64, NDArray[np.bool_], U64, NDArray[np.bool_]]:
        features = len(self.tables)
        levels = rng.standard_normal((rows, len(_DENSE_MEAN)), dtype=np.float32) * _DENSE_SD + _DENSE_MEAN
        counts = np.minimum(np.expm1(np.maximum(levels, 0)), MAX_COUNT).astype(np.int64)
        counts[:, 1] -= rng.integers(0, 4, rows)  # Criteo's I2 goes down to -3
        counts_missing = rng.random(counts.shape, dtype=np.float32) < np.array(_MISSING_DENSE, dtype=np.float32)
        counts[counts_missing] = 0
        ids = np.empty((features, rows), dtype=np.uint64)
        missing = np.zeros(ids.shape, dtype=np.bool_)
        for f, size in enumerate(self.tables):
            ids[f] = _zipf(rng.random(rows), size)
            if f in _MISSING_SPARSE:
                missing[f] = rng.random(rows, dtype=np.float32) < _MISSING_SPARSE[f]
        return counts, counts_missing, ids, missing

    def _raw_logits(self, counts: I64, counts_missing: Any, ids: U64, ids_missing: NDArray[np.bool_]) -> F64:
        features = len(self.tables)
        weights = _uniform(ids, self._keys[:features, None])
        weights /= np.sqrt(1.0 + ids / _TAIL_ID)
        weights[ids_missing] = 0.0
        logits: F64 = weights.sum(axis=0) * 0.35
        for pair, (left, right) in enumerate(_PAIRS):
            product = _uniform(ids[left], self._keys[features + 2 * pair])
            product *= _uniform(ids[right], self._keys[features + 2 * pair + 1])
            product /= np.sqrt((1.0 + ids[left] / _TAIL_ID) * (1.0 + ids[right] / _TAIL_ID))
            product[ids_missing[left] | ids_missing[right]] = 0.0
            logits += product * 0.3
        levels = np.log1p(np.maximum(counts, 0))
        logits += levels @ self._dense_weights
        logits -= 0.3 * np.abs(levels[:, 2] - 1.5)
        return logits


def _zipf(uniform: F64, size: int) -> F64:
    """Ids 0…size-1 whose frequency falls as rank^-1.2: the inverse of the continuous power law, rounded down."""
    ids: F64 = (1.0 + uniform * ((size + 1.0) ** (1 - _ZIPF) - 1.0)) ** (1 / (1 - _ZIPF))
    ids -= 1.0
    np.minimum(ids, size - 1.0, out=ids)
    return ids


def _uniform(ids: U64, key: U64) -> F64:
    """Uniform in ±sqrt(3), so with variance 1, by hash."""
    mixed = mix64(ids ^ key) >> np.uint64(11)
    uniform: F64 = mixed.astype(np.float64)
    uniform *= 2.0**-53
    uniform -= 0.5
    uniform *= 2 * 3.0**0.5
    return uniform


def _scramble(ids: U64, feature: U64) -> U64:
    """One-to-one map of ids to 32-bit values that look like Criteo's hashes (odd multiplications and xor-shifts)."""
    mask = np.uint64(0xFFFFFFFF)
    values = (ids + feature * np.uint64(0x9E3779B1)) & mask
    for factor in (0x7FEB352D, 0x846CA68B):
        values ^= values >> np.uint64(16)
        values *= np.uint64(factor)
        values &= mask
    values ^= values >> np.uint64(16)
    return values


def _bias_for(logits: F64, rate: float) -> float:
    """The shift that gives ``logits`` a mean probability of ``rate``, by bisection."""
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        if (1.0 / (1.0 + np.exp(-(logits + middle)))).mean() < rate:
            low = middle
        else:
            high = middle
    return low
