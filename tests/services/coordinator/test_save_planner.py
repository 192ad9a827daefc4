"""What a living run tells the save policy, and what comes of it."""

from __future__ import annotations

from typing import Any

import pytest

from checkpoint.piece import Piece
from checkpoint.save_policy import SaveOrder
from services.config import RunConfig
from services.coordinator.save_planner import SavePlanner

PIECES = ((Piece("big", 0, 3_000, 0, 16),), (Piece("small", 0, 1_000, 0, 16),))
TOTAL = 100_000
FULL, CHUNKED = SaveOrder("full", True), SaveOrder("full", False)
PRIORITY = SaveOrder("priority", False)


def planner(optimizer: str = "exact_row_wise_adagrad", **checkpoint: Any) -> SavePlanner:
    settings = {"mtbf_s": 1000.0, "expected_run_s": 1000.0, "pls_budget": 0.1, **checkpoint}
    config = RunConfig.model_validate({"checkpoint": settings, "embedding": {"optimizer": optimizer}})
    return SavePlanner(config, PIECES, [2])


def test_shares_are_those_of_the_weights() -> None:
    assert planner().shares == [0.75, 0.25]


def test_a_loss_is_the_samples_since_everything_was_saved() -> None:
    plans = planner(strategy="partial_vanilla")
    assert plans.covered_samples == 0
    (nothing_saved,) = plans.loss([1], 300, {})
    assert (nothing_saved.share, nothing_saved.lost_samples, nothing_saved.pending_accesses) == (0.25, 300, None)
    plans.saved(FULL, 1.0, 500, 0.01)
    both = plans.loss([0, 1], 800, {0: 7})
    assert [(loss.share, loss.lost_samples, loss.pending_accesses) for loss in both] == [
        (0.75, 300, 7),
        (0.25, 300, None),
    ]
    assert plans.loss([0], 400, {})[0].lost_samples == 0


def test_a_round_of_priority_saves_counts_as_one_of_everything() -> None:
    plans = planner(strategy="cpr_mfu", priority_fraction=0.25)
    plans.saved(FULL, 1.0, 100, 0.0)
    for number in range(1, 4):
        plans.saved(PRIORITY, 1.0 + number, 100 + number, 0.0)
        assert plans.covered_samples == 100
        assert plans.history.covered_s == 1.0
    plans.saved(PRIORITY, 5.0, 104, 0.0)
    assert plans.covered_samples == 104
    assert plans.history.covered_s == plans.history.last_s == 5.0
    assert plans.history.last_full_s == plans.history.last_consistent_s == 1.0


def test_due_saves_follow_the_history() -> None:
    plans = planner(strategy="partial_vanilla", interval_s=10.0)
    assert plans.due(9.9) is None
    assert plans.due(10.0) == FULL, "the first one is consistent"
    plans.saved(FULL, 10.0, 100, 0.0)
    assert plans.due(19.0) is None
    order = plans.due(20.0)
    assert order is not None and order.kind == "full"
    plans.restored(100, 15.0)
    assert plans.due(24.0) is None and plans.due(25.0) is not None


def test_what_is_spent_tightens_the_interval_and_then_changes_the_mode() -> None:
    plans = planner(strategy="partial_vanilla", free_overhead=0.0)
    first = plans.replan(100.0, 10_000, TOTAL)
    assert first.mode == "partial"
    plans.spent_pls, plans.row_losing_failures = 0.06, 1
    tighter = plans.replan(110.0, 11_000, TOTAL)
    assert tighter.mode == "partial" and tighter.interval_s < 0.6 * first.interval_s
    plans.spent_pls = 0.1
    gone = plans.replan(120.0, 12_000, TOTAL)
    assert gone.mode == "full" and "pls_budget" in gone.reason
    assert plans.recovery(plans.loss([1], 12_000, {}), TOTAL).mode == "full"


def test_a_loss_that_the_budget_cannot_pay_is_a_full_recovery() -> None:
    plans = planner(strategy="partial_vanilla")
    plans.replan(100.0, 10_000, TOTAL)
    plans.saved(FULL, 100.0, 10_000, 0.0)
    assert plans.recovery(plans.loss([0], 20_000, {}), TOTAL).mode == "partial"  # 0.75 × 0.1 of 0.1
    costly = plans.recovery(plans.loss([0], 30_000, {}), TOTAL)
    assert costly.mode == "full" and "0.15" in costly.reason


def test_effective_pls_adds_up_and_is_unknown_once_a_loss_was_not_counted() -> None:
    plans = planner()
    plans.charge_accesses(30, 1000)
    plans.charge_accesses(20, 1000)
    assert plans.effective_pls == pytest.approx(0.05)
    plans.charge_accesses(None, 1000)
    assert plans.effective_pls is None
    plans.charge_accesses(10, 1000)
    assert plans.effective_pls is None


def test_a_resumed_run_keeps_what_it_spent() -> None:
    plans = planner(strategy="partial_vanilla")
    plans.resumed(0.1, 0.01, 3)
    assert (plans.spent_pls, plans.effective_pls, plans.row_losing_failures) == (0.1, 0.01, 3)
    assert plans.replan(100.0, 10_000, TOTAL).mode == "full"


def test_the_first_saves_measure_what_one_costs() -> None:
    plans = planner(strategy="full")
    before = plans.replan(100.0, 10_000, TOTAL).interval_s
    plans.saved(FULL, 100.0, 10_000, 50.0)
    measured = plans.replan(100.0, 10_000, TOTAL).interval_s
    assert measured > before
    assert measured == pytest.approx((2 * 50.0 * 1000.0) ** 0.5, rel=0.2)  # Young's, by the measured cost
    told = planner(strategy="full", costs={"save_s": 2.0})
    kept = told.replan(100.0, 10_000, TOTAL).interval_s
    told.saved(FULL, 100.0, 10_000, 50.0)
    assert told.replan(100.0, 10_000, TOTAL).interval_s == kept, "a cost that was set is not measured"
