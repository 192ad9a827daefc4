"""What a format's reader yields: decoded rows, still with raw category values, and the lines it refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
F32 = NDArray[np.float32]

MISSING: Final = 2**32
"""Raw category value of an empty field; one more than the largest 32-bit category."""

RESERVED: Final = 2**64 - 1
"""No format yields this raw category value; lookup tables mark empty slots with it."""


class RejectedLine(NamedTuple):
    """One quarantined input line (1-based; the 1-based row in formats without lines)."""

    path: str
    line: int
    column: str
    found: str
    expected: str


@dataclass(slots=True)
class RawBlock:
    """n decoded rows that answer for the input rows ``[line_start, line_end)``.

    Attributes:
        dense: n×I float32, transformed (missing → 0, negative → 0, ``log1p``).
        labels: n float32, 0 or 1.
        categories: F×n uint64, contiguous, when every feature is one-hot; else one ``(values, lengths)`` pair per
            feature: L uint64 values in sample order and n int64 lengths.
        line_start: first input row covered, 0-based within the split's path.
        line_end: one past the last input row covered; rejected rows are covered too.
        row_index: n int64, the input row of each surviving row; ``None`` when no row was rejected.
        rejected: the refused lines among the covered rows, in order.
        weights: with weighted features, L float32 per feature (``None`` for one without); else ``None``.
    """

    dense: F32
    labels: F32
    categories: U64 | list[tuple[U64, I64]]
    line_start: int
    line_end: int
    row_index: I64 | None = None
    rejected: list[RejectedLine] = field(default_factory=list)
    weights: list[F32 | None] | None = None

    @property
    def rows(self) -> int:
        """Surviving rows n."""
        return int(self.labels.shape[0])


def squash_dense(counts: NDArray[Any]) -> F32:
    """``log1p(max(x, 0))`` in float32, the reference transform of DLRM (missing is passed as 0)."""
    squashed = counts.astype(np.float32)
    np.maximum(squashed, np.float32(0), out=squashed)
    np.log1p(squashed, out=squashed)
    return squashed


def signed_log1p(values: NDArray[Any]) -> F32:
    """``sign(x) * log1p(|x|)`` in float32: equals ``squash_dense`` from 0 on and keeps negative values apart."""
    squashed: F32 = np.abs(values).astype(np.float32)
    np.log1p(squashed, out=squashed)
    np.copysign(squashed, values, out=squashed, casting="same_kind")
    return squashed


def shorten(text: str, limit: int = 60) -> str:
    """``repr`` of a field for an error message, cut so that one wild line cannot flood a log."""
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}… ({len(text)} characters)"
