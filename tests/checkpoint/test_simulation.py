"""Random failures against the policy: the formulas hold, and an enforced budget is never overspent."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest

from benchmarks import cpr_overhead
from checkpoint.checkpoint_config import CheckpointConfig
from checkpoint.pls import expected_pls, loss_shares
from checkpoint.save_policy import SavePolicy
from checkpoint.simulation import SimulatedFailure, simulate
from tests.checkpoint.headline import HOUR, RUN_S, SHARES, schedule, situation


def policy(strategy: str, budget: float = 0.1, rounds: int | None = None) -> SavePolicy:
    return SavePolicy(CheckpointConfig(strategy=strategy, pls_budget=budget, full_every_rounds=rounds))


def test_the_benchmark_has_the_headline_and_agrees_with_the_formulas() -> None:
    result = cpr_overhead.measure(count=1500, seed=1)
    lines = result["model"]
    totals = [lines[name]["total"] for name in ("full", "naive partial", "CPR, PLS 0.1")]
    assert [round(total, 3) for total in totals] == [0.084, 0.043, 0.005]
    assert "fitted by us" in result["fitted"]
    simulated = result["monte_carlo"]
    assert all(line["exact_sum_inside"] for line in simulated)
    assert simulated[0]["first_order_over_pls"] == pytest.approx(1.0, abs=0.1)  # 2.24 h are small against 56 h
    assert simulated[2]["first_order_over_pls"] > 1.1  # 44.8 h are not
    assert all(budget["enforced"]["over_budget"] == 0 for budget in result["budget"])
    assert all(budget["not_enforced"]["over_budget"] > 0 for budget in result["budget"])


def test_one_failure_is_charged_by_hand() -> None:
    run = simulate(policy("partial_vanilla"), situation(), SHARES, [SimulatedFailure(50 * HOUR, (3,))], enforce=False)
    assert run.pls == pytest.approx((50 - 44.8) / 56 / 8, rel=1e-6)
    assert (run.full_saves, run.partial_recoveries, run.lost_work_s) == (1, 1, 0.0)
    assert run.saving_s + run.recovering_s == 330 + 300
    run = simulate(policy("full"), situation(), SHARES, [SimulatedFailure(50 * HOUR, (3,))])
    saved_s = 22 * run.plans[0][1].interval_s
    assert run.lost_work_s == pytest.approx(50 * HOUR - saved_s)
    assert run.pls == 0.0


def test_shards_lost_together_cost_their_shares() -> None:
    shares = [0.4, 0.3, 0.2, 0.1]
    start = replace(situation(), shares=loss_shares(shares, 2))
    run = simulate(policy("partial_vanilla"), start, shares, [SimulatedFailure(HOUR, (0, 2))], enforce=False)
    assert run.pls == pytest.approx(0.6 / 56, rel=1e-6)


def test_mean_of_two_at_once_is_twice_the_formula() -> None:
    start = replace(situation(), shares=loss_shares(SHARES, 2))
    chosen = policy("partial_vanilla", budget=0.01)
    plan = chosen.plan(start)
    runs = [simulate(chosen, start, SHARES, schedule(seed, at_once=2), enforce=False).pls for seed in range(1500)]
    half = 2.6 * statistics.stdev(runs) / math.sqrt(len(runs))
    assert plan.interval_s / HOUR == pytest.approx(2.24)
    assert statistics.fmean(runs) == pytest.approx(expected_pls(plan.interval_s, 28 * HOUR, 2 / 8), abs=half)


def test_a_run_that_would_overspend_is_tightened_then_switched_and_ends_within_its_budget() -> None:
    chosen = policy("auto")
    failures = schedule(7, mtbf_s=3 * HOUR)  # where one in 28 h was assumed
    free = simulate(chosen, situation(), SHARES, failures, enforce=False)
    assert free.pls > 0.1
    run = simulate(chosen, situation(), SHARES, failures)
    assert run.pls <= 0.1
    intervals = [plan.interval_s for _, plan in run.plans if plan.mode == "partial"]
    assert len(intervals) > 2
    assert intervals[-1] < intervals[0]
    last = run.plans[-1][1]
    assert last.mode == "full"
    assert "of checkpoint.pls_budget=0.1 is spent" in last.reason
    assert run.full_recoveries > 0
    assert run.partial_recoveries > 0


@pytest.mark.parametrize("strategy", ["auto", "partial_vanilla", "cpr_ssu"])
@pytest.mark.parametrize("rounds", [None, 4])
def test_no_schedule_overspends(strategy: str, rounds: int | None) -> None:
    for seed in range(60):
        run = simulate(policy(strategy, rounds=rounds), situation(), SHARES, schedule(seed, 2 * HOUR + seed * 600))
        assert run.pls <= 0.1 + 1e-9


def test_bytes_of_priority_saves_are_those_of_vanilla() -> None:
    start = situation(mtbf_s=2.8 * HOUR)  # an interval of 4.48 h
    vanilla, priority = (
        simulate(policy(name), start, SHARES, [], enforce=False) for name in ("partial_vanilla", "cpr_mfu")
    )
    assert vanilla.full_saves == 12
    assert priority.full_saves + priority.priority_saves / 8 == pytest.approx(12, abs=1.5)
    assert priority.full_saves == 1


def test_the_length_of_the_run_must_be_known() -> None:
    with pytest.raises(ValueError, match="run_s is None"):
        simulate(policy("auto"), replace(situation(), run_s=None), SHARES, [SimulatedFailure(RUN_S, (0,))])
