"""How well the best possible model would do on synthetic rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_BINS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SliceReport:
    """Rows ``[start, start + rows)`` scored by their true probabilities; rates are ``None`` for an empty slice.

    ``bayes_auc`` is ``None`` too when the slice has one class only. ``bayes_logloss`` is in nats.
    """

    start: int
    rows: int
    base_rate: float | None
    bayes_auc: float | None
    bayes_logloss: float | None


class BayesScore:
    """AUC and logloss of true probabilities against sampled labels, in constant memory.

    The AUC counts pairs over 2^20 bins of probability, pairs within a bin as half: off by less than 1e-6.
    """

    def __init__(self) -> None:
        """Starts without rows."""
        self._bins = np.zeros((2, _BINS), dtype=np.int64)
        self._loss = 0.0

    def add(self, labels: NDArray[np.uint8], probabilities: NDArray[np.float64]) -> None:
        """Adds n labels and their probabilities."""
        at = np.minimum((probabilities * _BINS).astype(np.int64), _BINS - 1)
        clicked = labels == 1
        np.add.at(self._bins[1], at[clicked], 1)
        np.add.at(self._bins[0], at[~clicked], 1)
        self._loss -= float(np.log(np.where(clicked, probabilities, 1.0 - probabilities)).sum())

    def report(self, start: int) -> SliceReport:
        """The slice's figures; ``start`` is its first row."""
        negatives, positives = (int(part.sum()) for part in self._bins)
        rows = negatives + positives
        if rows == 0:
            return SliceReport(start, 0, None, None, None)
        below: NDArray[Any] = np.cumsum(self._bins[0]) - self._bins[0] / 2
        pairs = float(positives) * negatives
        auc = float(self._bins[1] @ below) / pairs if pairs else None
        return SliceReport(start, rows, positives / rows, auc, self._loss / rows)
