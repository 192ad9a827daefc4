"""Evaluation of click predictions: exact AUC, normalized entropy, logloss, accuracy, calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_CHUNK_SAMPLES = 1 << 20
_UNDECIDED_AUC = 0.005


@dataclass(frozen=True, slots=True)
class EvalMetrics:
    """What one evaluation found. A metric that the data does not define is ``None`` and ``reasons`` says why.

    Attributes:
        samples: number evaluated.
        positives: number with label 1.
        auc: area under the ROC curve, ties averaged.
        ne: normalized entropy, logloss over the entropy of the base rate (He et al., ADKDD 2014, section 3).
        logloss: mean negative log likelihood in nats.
        accuracy: share predicted right at a probability of 0.5.
        calibration: sum of predictions over number of positives.
        prediction_min: smallest predicted probability.
        prediction_max: largest predicted probability.
        constant: every logit was the same.
        reasons: metric → why it is ``None``.
    """

    samples: int
    positives: int
    auc: float | None = None
    ne: float | None = None
    logloss: float | None = None
    accuracy: float | None = None
    calibration: float | None = None
    prediction_min: float | None = None
    prediction_max: float | None = None
    constant: bool = False
    reasons: dict[str, str] = field(default_factory=dict)

    def warning(self) -> str | None:
        """What looks wrong with these predictions, or ``None``."""
        if self.constant and self.samples > 1:
            return (
                f"all {self.samples} predictions are {self.prediction_min:.6g}: the model has not learned to tell "
                "samples apart; check dense.learning_rate, embedding.learning_rate and the input columns"
            )
        if self.auc is not None and abs(self.auc - 0.5) < _UNDECIDED_AUC:
            return (
                f"AUC {self.auc:.4f} over {self.samples} samples is no better than chance; check the label column, "
                "dense.learning_rate and embedding.learning_rate"
            )
        return None

    def summary(self) -> dict[str, float | int | None]:
        """The ``metrics`` object of ``summary.json``."""
        return {
            "auc": self.auc,
            "ne": self.ne,
            "logloss": self.logloss,
            "accuracy": self.accuracy,
            "calibration": self.calibration,
            "eval_samples": self.samples,
        }


class EvalAccumulator:
    """Collects logits and labels from several trainers, in any order; 5 bytes a sample."""

    def __init__(self) -> None:
        self._logits: list[NDArray[np.float32]] = []
        self._labels: list[NDArray[np.bool_]] = []

    def add(self, logits: NDArray[np.float32], labels: NDArray[np.generic]) -> None:
        """Add B logits (not probabilities: a float32 probability rounds to 1 at a logit of 17) and B labels, 0 or 1.

        The arrays are copied, so the caller may reuse them.

        Raises:
            ValueError: shapes differ, or a label is neither 0 nor 1.
        """
        if logits.ndim != 1 or logits.shape != labels.shape:
            raise ValueError(f"logits and labels must be 1-D and of one length, got {logits.shape} and {labels.shape}")
        truth = labels == 1
        if not np.all(truth | (labels == 0)):
            strange = labels[~(truth | (labels == 0))]
            raise ValueError(f"labels must be 0 or 1, got {strange[0]} ({strange.size} of {labels.size} are neither)")
        self._logits.append(np.array(logits, dtype=np.float32))
        self._labels.append(truth)

    @property
    def samples(self) -> int:
        """Samples added so far."""
        return sum(part.size for part in self._logits)

    def compute(self) -> EvalMetrics:
        """Metrics of everything added so far."""
        if not self._logits:
            return evaluate(np.empty(0, np.float32), np.empty(0, np.bool_))
        return evaluate(np.concatenate(self._logits), np.concatenate(self._labels))


def evaluate(logits: NDArray[np.float32], labels: NDArray[np.bool_]) -> EvalMetrics:
    """Metrics of B logits against B labels, sums in float64; never raises on degenerate data."""
    samples, positives = labels.size, int(np.count_nonzero(labels))
    reasons: dict[str, str] = {}
    every = ("auc", "ne", "logloss", "accuracy", "calibration")
    if samples == 0:
        reasons = dict.fromkeys(every, "no samples were evaluated")
    elif broken := samples - int(np.count_nonzero(np.isfinite(logits))):
        reasons = dict.fromkeys(every, f"{broken} of {samples} predictions are NaN or infinite")
    if reasons:
        return EvalMetrics(samples, positives, reasons=reasons)

    loss_sum, prediction_sum, correct = _sums(logits, labels)
    logloss = loss_sum / samples
    if positives in (0, samples):
        reasons["auc"] = reasons["ne"] = f"all {samples} labels are {int(positives > 0)}"
    if positives == 0:
        reasons["calibration"] = f"none of {samples} labels is 1"
    low, high = float(logits.min()), float(logits.max())
    return EvalMetrics(
        samples=samples,
        positives=positives,
        auc=auc(logits, labels),
        ne=_normalized(logloss, positives, samples),
        logloss=logloss,
        accuracy=correct / samples,
        calibration=prediction_sum / positives if positives else None,
        prediction_min=float(sigmoid(np.float64(low))),
        prediction_max=float(sigmoid(np.float64(high))),
        constant=low == high,
        reasons=reasons,
    )


def auc(scores: NDArray[np.float32], labels: NDArray[np.bool_]) -> float | None:
    """Area under the ROC curve of B scores: the share of (positive, negative) pairs in order, a tie counting half.

    Counted in integers, so exact up to the last division (Mann-Whitney U). ``None`` when a class is missing.
    """
    positives = int(np.count_nonzero(labels))
    negatives = labels.size - positives
    if not positives or not negatives:
        return None
    order = np.argsort(scores)
    ordered = scores[order]
    # Last position of every run of equal scores, and the positives up to it.
    last = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), labels.size - 1)
    positives_to = np.cumsum(labels[order], dtype=np.int64)[last]
    negatives_to = last + 1 - positives_to
    run_positives = np.diff(positives_to, prepend=0)
    run_negatives = np.diff(negatives_to, prepend=0)
    doubled = int(np.dot(run_positives, 2 * negatives_to - run_negatives))
    return doubled / (2 * positives * negatives)


@dataclass(slots=True)
class ProgressiveLoss:
    """Loss of samples predicted before they were trained on (one pass): an honest quality figure at no cost.

    One object per thread; merge them to read. ``loss_sum`` is in nats, over all samples.
    """

    loss_sum: float = 0.0
    samples: int = 0
    positives: int = 0

    def add(self, loss_sum: float, samples: int, positives: int) -> None:
        """Count one batch: its summed loss, its size, its labels of 1."""
        self.loss_sum += loss_sum
        self.samples += samples
        self.positives += positives

    def merge(self, other: ProgressiveLoss) -> None:
        """Count everything that ``other`` counted."""
        self.add(other.loss_sum, other.samples, other.positives)

    @property
    def logloss(self) -> float | None:
        """Mean loss in nats; ``None`` without samples."""
        return self.loss_sum / self.samples if self.samples else None

    @property
    def ne(self) -> float | None:
        """Normalized entropy; ``None`` without both classes."""
        return _normalized(self.loss_sum / self.samples, self.positives, self.samples) if self.samples else None


def _normalized(logloss: float, positives: int, samples: int) -> float | None:
    if positives in (0, samples):
        return None
    rate = positives / samples
    return logloss / -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))


def _sums(logits: NDArray[np.float32], labels: NDArray[np.bool_]) -> tuple[float, float, int]:
    """Summed loss, summed predictions, number right; in chunks, so that float64 copies stay small."""
    loss_sum = prediction_sum = 0.0
    correct = 0
    for start in range(0, labels.size, _CHUNK_SAMPLES):
        truth = labels[start : start + _CHUNK_SAMPLES]
        logit = logits[start : start + _CHUNK_SAMPLES].astype(np.float64)
        correct += int(np.count_nonzero((logit > 0) == truth))
        prediction_sum += float(sigmoid(logit).sum())
        # softplus(z) - y·z is the loss without ever taking the logarithm of a rounded probability.
        loss_sum += float((np.logaddexp(0.0, logit) - truth * logit).sum())
    return loss_sum, prediction_sum, correct


def sigmoid(logit: NDArray[np.float64] | np.float64) -> NDArray[np.float64] | np.float64:
    """Probability of a click at a logit, in float64."""
    # tanh never overflows, exp(-z) does at z < -709.
    return 0.5 * (1.0 + np.tanh(0.5 * logit))
