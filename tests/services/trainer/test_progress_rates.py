"""Learning rates that follow the whole run's progress."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.progress_rates import ProgressRates
from trainer.config import DenseConfig, EmbeddingConfig

DENSE = DenseConfig(learning_rate=0.01, warmup_samples=100, decay="linear")
EMBEDDING = EmbeddingConfig(learning_rate=0.5, decay="none")


@given(reports=st.lists(st.integers(0, 1000), max_size=20))
def test_with_one_trainer_the_rates_do_not_depend_on_when_reports_happen(reports: list[int]) -> None:
    told, silent = (ProgressRates(DENSE, EMBEDDING, 1000, 1) for _ in range(2))
    due = set(reports)
    for samples in range(0, 1000, 10):
        if samples in due or samples % 70 == 0:
            told.reported(0, samples)
        assert told(samples) == silent(samples)
        expected = 0.01 * samples / 100 if samples < 100 else 0.01 * (1000 - samples) / 900
        assert told(samples) == (pytest.approx(expected, rel=1e-12), 0.5)


def test_the_others_are_taken_to_go_on_at_this_trainers_pace() -> None:
    rates = ProgressRates(DENSE, EMBEDDING, 1000, 4)
    assert rates(50)[0] == pytest.approx(0.01 * (1000 - 200) / 900)  # 4 × 50
    rates.reported(450, 50)
    assert rates(50)[0] == pytest.approx(0.01 * (1000 - 500) / 900)
    assert rates(60)[0] == pytest.approx(0.01 * (1000 - 540) / 900)
    rates.reported(460, 70)
    assert rates(60)[0] == pytest.approx(0.01 * (1000 - 520) / 900), "a step begun before the report"
    assert rates(200)[0] == 0.0 and rates(10_000)[0] == 0.0, "past the end, also by extrapolation"


def test_a_replacement_goes_on_where_the_run_is_before_its_first_report() -> None:
    rates = ProgressRates(DENSE, EMBEDDING, 1000, 1, trained_samples=900)
    assert rates(0)[0] == pytest.approx(0.01 * 100 / 900)
    rates.reported(900, 40)
    assert rates(50)[0] == pytest.approx(0.01 * 50 / 900)


def test_embedding_rates_may_decay_without_warm_up() -> None:
    rates = ProgressRates(DENSE, EmbeddingConfig(learning_rate=0.5, decay="linear"), 1000, 1)
    assert [rates(samples)[1] for samples in (0, 500, 1000)] == [0.5, 0.25, 0.0]
