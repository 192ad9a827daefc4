"""Mean time between failures that lose rows: given, observed, or both together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

DEFAULT_MTBF_S = 24 * 3600.0
"""One such failure a day, until a run knows better. Ours, not the paper's, whose jobs had 14 to 30 h."""


@dataclass(frozen=True, slots=True)
class MtbfEstimate:
    """What ``failures`` in ``observed_s`` tell of the mean time between them.

    Attributes:
        failures: how many.
        observed_s: seconds watched.
        mean_s: observed_s / failures; inf for none.
        low_s: lower end of the confidence interval.
        high_s: upper end; inf for none.
        confidence: of the interval.
    """

    failures: int
    observed_s: float
    mean_s: float
    low_s: float
    high_s: float
    confidence: float


def estimate_mtbf(failures: int, observed_s: float, confidence: float = 0.95) -> MtbfEstimate:
    """Estimate from a count in a fixed time, failures at random (Poisson).

    The interval is exact: [2t/χ²(1-α/2; 2n+2), 2t/χ²(α/2; 2n)] (Garwood 1936, for the rate). Without a failure there is
    no upper end, and the lower one is one-sided: t/ln(1/α).

    Raises:
        ValueError: a negative count or time, or a confidence that is none.
    """
    if failures < 0 or not 0.0 <= observed_s < math.inf or not 0.0 < confidence < 1.0:
        raise ValueError(f"{failures} failures in {observed_s} s at confidence {confidence} cannot be estimated from")
    alpha = 1.0 - confidence
    if failures == 0:
        return MtbfEstimate(0, observed_s, math.inf, observed_s / -math.log(alpha), math.inf, confidence)
    return MtbfEstimate(
        failures,
        observed_s,
        observed_s / failures,
        observed_s / _gamma_quantile(1.0 - alpha / 2, failures + 1),
        observed_s / _gamma_quantile(alpha / 2, failures),
        confidence,
    )


def believed_mtbf_s(prior_s: float | None, failures: int, observed_s: float) -> float:
    """The mean time to plan with: what was assumed, weighed as one failure in ``prior_s``, and what was observed.

    (prior_s + t)/(1 + n): the inverse of the mean rate after observing, with a Gamma(1, ``prior_s``) rate before it.
    So it starts at the assumption, has no trouble with no failures, and follows the observations as they come.
    """
    return ((DEFAULT_MTBF_S if prior_s is None else prior_s) + observed_s) / (1 + failures)


def _gamma_quantile(probability: float, shape: int) -> float:
    """x at which the Gamma(shape, 1) distribution function is ``probability``: half the χ² quantile of 2·shape."""
    degrees = torch.tensor(float(shape), dtype=torch.float64)

    def below(x: float) -> bool:
        return float(torch.special.gammainc(degrees, torch.tensor(x, dtype=torch.float64))) < probability

    low, high = 0.0, float(shape)
    while below(high):
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return high
