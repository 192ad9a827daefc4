"""Estimates of the mean time between failures, against SciPy's χ² and against drawn runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chi2

from checkpoint.mtbf import DEFAULT_MTBF_S, believed_mtbf_s, estimate_mtbf


@pytest.mark.parametrize("failures", [1, 2, 7, 100])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95])
def test_interval_is_the_chi_square_one(failures: int, confidence: float) -> None:
    found = estimate_mtbf(failures, 1000.0, confidence)
    alpha = 1 - confidence
    assert found.mean_s == 1000.0 / failures
    assert found.low_s == pytest.approx(2000 / chi2.ppf(1 - alpha / 2, 2 * failures + 2))
    assert found.high_s == pytest.approx(2000 / chi2.ppf(alpha / 2, 2 * failures))
    assert found.low_s < found.mean_s < found.high_s


def test_without_a_failure_there_is_only_a_lower_bound() -> None:
    found = estimate_mtbf(0, 1000.0)
    assert (found.mean_s, found.high_s) == (math.inf, math.inf)
    assert found.low_s == pytest.approx(1000 / -math.log(0.05))
    assert found.low_s == pytest.approx(2000 / chi2.ppf(0.95, 2))
    assert estimate_mtbf(0, 0.0).low_s == 0.0


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    counts = np.random.default_rng(0).poisson(5.0, 4000)
    estimates = {count: estimate_mtbf(count, 100.0, 0.9) for count in set(counts.tolist())}
    inside = np.mean([estimates[count].low_s <= 20.0 <= estimates[count].high_s for count in counts.tolist()])
    assert inside >= 0.89  # exact intervals hold at least what they promise


def test_belief_starts_at_the_assumption_and_follows_what_happens() -> None:
    assert believed_mtbf_s(None, 0, 0.0) == DEFAULT_MTBF_S
    assert believed_mtbf_s(100.0, 0, 300.0) == 400.0  # nothing happened: longer
    assert believed_mtbf_s(100.0, 9, 300.0) == 40.0
    assert believed_mtbf_s(100.0, 10_000, 1e6) == pytest.approx(100.0, rel=1e-3)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 failures"):
        estimate_mtbf(-1, 1.0)
    with pytest.raises(ValueError, match=r"confidence 1\.0"):
        estimate_mtbf(1, 1.0, 1.0)
    for seconds in (math.nan, math.inf):
        with pytest.raises(ValueError, match="cannot be estimated"):
            estimate_mtbf(1, seconds)
