from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.schedule import learning_rate


def test_warm_up_then_linear_decay() -> None:
    rates = [learning_rate(2.0, samples, 1000, 200, "linear") for samples in (0, 100, 200, 600, 1000, 1500)]
    assert rates == [0.0, 1.0, 2.0, 1.0, 0.0, 0.0]


def test_without_decay_the_rate_stays_and_needs_no_total() -> None:
    assert [learning_rate(0.1, samples, 0, 10, "none") for samples in (0, 5, 10, 10**9)] == [0.0, 0.05, 0.1, 0.1]


def test_without_warm_up_the_first_step_has_the_whole_rate() -> None:
    assert learning_rate(0.1, 0, 100, 0, "linear") == 0.1
    assert learning_rate(0.1, 50, 100, 0, "linear") == pytest.approx(0.05)


@given(st.integers(0, 500), st.integers(1, 300), st.integers(0, 400), st.sampled_from(["none", "linear"]))
def test_never_outside_zero_and_base(samples: int, total: int, warmup: int, decay: str) -> None:
    assert 0.0 <= learning_rate(0.5, samples, total, warmup, decay) <= 0.5  # type: ignore[arg-type]


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"dense\.decay=linear needs"):
        learning_rate(0.1, 0, 0, 0, "linear")
    with pytest.raises(ValueError, match="must not be negative"):
        learning_rate(0.1, -1, 10, 0, "none")
