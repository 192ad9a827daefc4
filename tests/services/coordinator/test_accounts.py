"""Running totals of a run: speed, limits on bad input, which evaluation counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from services.coordinator.accounts import Accounts, TooManyBadError
from trainer.data.batch import RowSpan
from trainer.data.block import RejectedLine
from trainer.ledger import BadBatch, Report
from trainer.metrics import ProgressiveLoss


def trained(samples: int, loss: float = 0.5, positives: int = 0) -> Report:
    return Report(loss=ProgressiveLoss(loss * samples, samples, positives))


def predicted(logits: list[float], labels: list[int]) -> Report:
    return Report(predictions=[(np.array(logits, np.float32), np.array(labels, np.float32))])


def bad_line(number: int, path: str = "a.tsv") -> RejectedLine:
    return RejectedLine(path, number, "I1", "'x'", "an integer")


def test_throughput_leaves_out_start_up_drains_and_evaluations() -> None:
    accounts = Accounts(0, 0)
    accounts.report(trained(1000), 100.0)  # trained before the window opened: start-up
    accounts.report(trained(300), 101.0)
    accounts.report(trained(500), 104.0)
    assert accounts.first_step_s == 100.0
    assert accounts.throughput == 800 / 4
    accounts.stage_ended("train")
    accounts.report(predicted([0.0], [1]), 150.0)
    accounts.stage_ended("eval")
    accounts.report(trained(999), 200.0)
    accounts.report(trained(400), 202.0)
    assert accounts.throughput == (800 + 400) / (4 + 2)
    assert accounts.first_step_s == 100.0


def test_throughput_of_nothing_and_of_one_report_is_unknown() -> None:
    accounts = Accounts(0, 0)
    assert accounts.throughput is None
    accounts.report(trained(1000), 100.0)
    assert accounts.throughput is None


def test_recent_speed_and_loss_forget_what_is_older_than_five_seconds() -> None:
    accounts = Accounts(0, 0)
    for second in range(11):
        accounts.report(trained(100, loss=2.0 if second < 5 else 0.25), float(second))
    speed, loss = accounts.recent(10.0)
    assert speed == pytest.approx(100.0)
    assert (loss.samples, loss.logloss) == (600, pytest.approx(0.25))
    assert accounts.recent(16.0) == (0.0, ProgressiveLoss())


def test_bad_lines_are_counted_once_and_the_first_ten_are_listed() -> None:
    accounts = Accounts(max_bad_lines=11, max_bad_batches=0)
    lines = [bad_line(number) for number in range(12, 0, -1)]
    assert accounts.reject(lines[:11]) == lines[:11]
    assert accounts.reject(lines[:3]) == [], "a second epoch meets the same lines"
    accounts.check_lines()
    assert accounts.reject([lines[0], lines[11], bad_line(1, "b.tsv")]) == [lines[11], bad_line(1, "b.tsv")]
    with pytest.raises(TooManyBadError) as caught:
        accounts.check_lines()
    text = str(caught.value)
    assert "13 input lines were rejected, data.max_bad_lines allows 11" in text
    assert text.count("\n") == 10
    assert [f"a.tsv:{number}: I1: found 'x', expected an integer" in text for number in range(1, 13)] == (
        [True] * 10 + [False] * 2
    )
    assert "b.tsv" not in text


def test_bad_batches_up_to_the_limit_pass_and_one_more_fails_with_the_list() -> None:
    accounts = Accounts(0, max_bad_batches=2)
    bad = BadBatch((RowSpan(0, 0, 8, 8),), math.nan)
    accounts.bad_batch(bad, "a.tsv rows 0-7")
    accounts.bad_batch(bad, "a.tsv rows 8-15")
    with pytest.raises(TooManyBadError) as caught:
        accounts.bad_batch(BadBatch((), math.inf), "b.tsv rows 0-7")
    text = str(caught.value)
    assert "3 batches" in text and "train.max_bad_batches allows 2" in text
    assert "a.tsv rows 0-7: loss nan" in text and "b.tsv rows 0-7: loss inf" in text


def test_the_last_evaluation_is_final_and_the_highest_auc_best() -> None:
    accounts = Accounts(0, 0)
    rounds = [([1.0, 0.0], [0, 1]), ([0.0, 1.0], [0, 1]), ([0.0, 0.0], [0, 1])]
    assert accounts.best is None
    for number, (logits, labels) in enumerate(rounds, 1):
        assert accounts.stage_ended("train") is None
        accounts.report(predicted(logits[:1], labels[:1]), 0.0)
        accounts.report(predicted(logits[1:], labels[1:]), 0.0)
        predictions = accounts.stage_ended("eval")
        assert predictions is not None and predictions.samples == 2
        accounts.evaluated(100 * number, predictions.compute())
    assert [evaluation.metrics.auc for evaluation in accounts.evaluations] == [0.0, 1.0, 0.5]
    assert accounts.best is accounts.evaluations[1] and accounts.best.at_samples == 200


def test_without_any_auc_there_is_no_best() -> None:
    accounts = Accounts(0, 0)
    accounts.report(predicted([0.0, 1.0], [1, 1]), 0.0)
    predictions = accounts.stage_ended("eval")
    assert predictions is not None
    accounts.evaluated(10, predictions.compute())
    assert accounts.evaluations[0].metrics.auc is None
    assert accounts.best is None
