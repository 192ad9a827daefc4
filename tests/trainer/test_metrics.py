from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from trainer.metrics import EvalAccumulator, EvalMetrics, ProgressiveLoss, auc, evaluate


def _clicks(samples: int, decimals: int | None, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1.0, 1.5, samples).astype(np.float32)
    labels = rng.random(samples) < 1 / (1 + np.exp(-logits))
    return (logits if decimals is None else np.round(logits, decimals)), labels


@pytest.mark.parametrize("decimals", [None, 2, 1, 0])
def test_metrics_equal_scikit_learn(decimals: int | None) -> None:
    logits, labels = _clicks(20_000, decimals)
    metrics = evaluate(logits, labels)
    predictions = 1 / (1 + np.exp(-logits.astype(np.float64)))
    assert metrics.auc == pytest.approx(roc_auc_score(labels, predictions), abs=1e-12)
    assert metrics.logloss == pytest.approx(log_loss(labels, predictions), abs=1e-12)
    assert metrics.accuracy == pytest.approx(accuracy_score(labels, predictions > 0.5), abs=1e-12)
    assert metrics.calibration == pytest.approx(predictions.sum() / labels.sum(), abs=1e-12)
    constant_guess = np.full(labels.size, labels.mean())
    assert metrics.ne == pytest.approx(log_loss(labels, predictions) / log_loss(labels, constant_guess), abs=1e-9)
    assert (metrics.samples, metrics.positives) == (20_000, int(labels.sum()))
    assert metrics.reasons == {} and metrics.warning() is None


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=40))
def test_auc_is_the_share_of_ordered_pairs(rows: list[tuple[int, bool]]) -> None:
    positives = [score for score, label in rows if label]
    negatives = [score for score, label in rows if not label]
    found = auc(np.array([row[0] for row in rows], np.float32), np.array([row[1] for row in rows]))
    if not positives or not negatives:
        assert found is None
    else:
        wins = sum((p > n) + 0.5 * (p == n) for p in positives for n in negatives)
        assert found == pytest.approx(wins / (len(positives) * len(negatives)), abs=1e-12)


def test_sums_across_chunks_do_not_depend_on_the_chunk() -> None:
    logits, labels = _clicks(1_200_000, 2)
    predictions = 1 / (1 + np.exp(-logits.astype(np.float64)))
    assert evaluate(logits, labels).logloss == pytest.approx(log_loss(labels, predictions), abs=1e-10)


def test_confident_mistakes_give_a_finite_loss() -> None:
    metrics = evaluate(np.array([1e4, -1e4, 30.0], np.float32), np.array([False, True, True]))
    assert metrics.logloss == pytest.approx((2e4 + math.log1p(math.exp(-30))) / 3, rel=1e-12)


def test_parts_from_several_trainers_count_as_one_evaluation() -> None:
    logits, labels = _clicks(5_000, 1)
    accumulator = EvalAccumulator()
    reused = np.empty(1_000, np.float32)
    for start in range(4_000, -1, -1_000):
        reused[:] = logits[start : start + 1_000]
        accumulator.add(reused, labels[start : start + 1_000].astype(np.float32))
    assert accumulator.samples == 5_000
    merged, whole = accumulator.compute(), evaluate(logits, labels)
    assert (merged.auc, merged.accuracy) == (whole.auc, whole.accuracy)
    assert merged.logloss == pytest.approx(whole.logloss, abs=1e-12)


def test_undefined_metrics_are_none_with_a_reason() -> None:
    empty = EvalAccumulator().compute()
    assert empty.summary() == dict.fromkeys(("auc", "ne", "logloss", "accuracy", "calibration")) | {"eval_samples": 0}
    assert set(empty.reasons) == {"auc", "ne", "logloss", "accuracy", "calibration"}

    logits = np.array([0.5, -0.5], np.float32)
    negatives = evaluate(logits, np.array([False, False]))
    assert (negatives.auc, negatives.ne, negatives.calibration) == (None, None, None)
    assert negatives.reasons["auc"] == "all 2 labels are 0"
    assert negatives.logloss is not None and negatives.accuracy == 0.5
    positives = evaluate(logits, np.array([True, True]))
    assert (positives.auc, positives.ne) == (None, None)
    assert positives.calibration == pytest.approx(0.5)

    broken = evaluate(np.array([0.5, np.nan, np.inf], np.float32), np.array([False, True, True]))
    assert broken.auc is None and broken.logloss is None
    assert broken.reasons["auc"] == "2 of 3 predictions are NaN or infinite"


def test_useless_predictions_are_called_out() -> None:
    labels = np.arange(1_000) % 4 == 0
    constant = evaluate(np.full(1_000, -1.0986123, np.float32), labels)
    assert constant.auc == 0.5
    assert "all 1000 predictions are 0.25" in str(constant.warning())

    chance = EvalMetrics(samples=10, positives=5, auc=0.5049)
    assert "no better than chance" in str(chance.warning())
    assert EvalMetrics(samples=10, positives=5, auc=0.506).warning() is None


def test_labels_other_than_zero_and_one_are_refused() -> None:
    accumulator = EvalAccumulator()
    with pytest.raises(ValueError, match=r"labels must be 0 or 1, got 2\.0 \(1 of 2 are neither\)"):
        accumulator.add(np.zeros(2, np.float32), np.array([0.0, 2.0]))
    with pytest.raises(ValueError, match="of one length"):
        accumulator.add(np.zeros(2, np.float32), np.zeros(3))
    assert accumulator.samples == 0


def test_progressive_loss_of_threads_adds_up() -> None:
    logits, labels = _clicks(3_000, None)
    losses = np.logaddexp(0, logits.astype(np.float64)) - labels * logits
    merged = ProgressiveLoss()
    assert merged.logloss is None and merged.ne is None
    for start in (0, 1_000, 2_000):
        part = ProgressiveLoss()
        for row in range(start, start + 1_000, 250):
            batch = slice(row, row + 250)
            part.add(float(losses[batch].sum()), 250, int(labels[batch].sum()))
        merged.merge(part)
    whole = evaluate(logits, labels)
    assert merged.logloss == pytest.approx(whole.logloss, abs=1e-12)
    assert merged.ne == pytest.approx(whole.ne, abs=1e-12)
    one_class = ProgressiveLoss(1.0, 10, 0)
    assert one_class.ne is None and one_class.logloss == 0.1
