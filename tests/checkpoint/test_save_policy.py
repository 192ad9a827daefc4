"""The save policy: which way, how often, of what kind, and what the budget refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from checkpoint.budget import affordable, longest_interval
from checkpoint.checkpoint_config import CheckpointConfig
from checkpoint.overhead import Costs
from checkpoint.pls import LossShares, exact_expected_pls, loss_shares
from checkpoint.save_policy import SaveHistory, SaveOrder, SavePolicy, Situation
from tests.checkpoint.headline import COSTS, HOUR, MTBF_S, situation

CHEAP = Costs(1.0, 1.0, 1.0, 1.0, 1.0)


def policy(optimizer: str = "exact_sgd", **settings: Any) -> SavePolicy:
    return SavePolicy(CheckpointConfig(**{"full_every_rounds": None, **settings}), optimizer)


def test_auto_takes_the_cheaper_way_and_says_both_numbers() -> None:
    plan = policy().plan(situation())
    assert (plan.mode, plan.strategy) == ("partial", "cpr_mfu")
    assert plan.interval_s / HOUR == pytest.approx(44.8)
    assert plan.save_every_s == pytest.approx(plan.interval_s / 8)
    assert "partial recovery costs 0.502 % at an interval of 44.80 h" in plan.reason
    assert "full recovery 8.39 % at 2.27 h" in plan.reason
    assert plan.partial is not None
    assert (plan.partial.expected_pls, plan.partial.exact_expected_pls) == (pytest.approx(0.1), pytest.approx(0.085))

    plan = policy(pls_budget=0.002).plan(situation())  # below the break-even of 0.0025
    assert (plan.mode, plan.strategy) == ("full", "full")
    assert plan.interval_s / HOUR == pytest.approx(2.27, abs=0.005)
    assert plan.full_every_s == plan.save_every_s == plan.interval_s


def test_auto_reads_priorities_from_adagrad_where_there_is_one() -> None:
    for optimizer in ("exact_adagrad", "exact_row_wise_adagrad"):
        assert policy(optimizer).plan(situation()).strategy == "cpr_adagrad"
    with pytest.raises(ValueError, match="not exact_sgd"):
        policy(strategy="cpr_adagrad")


def test_a_strategy_that_was_asked_for_stays_though_it_is_dearer() -> None:
    plan = policy(strategy="cpr_ssu", pls_budget=0.002).plan(situation())
    assert (plan.mode, plan.strategy) == ("partial", "cpr_ssu")
    plan = policy(strategy="full").plan(situation())
    assert (plan.mode, plan.reason) == ("full", "checkpoint.strategy=full")


def test_no_interval_is_longer_than_the_run() -> None:
    start = Situation(COSTS, 100 * HOUR, loss_shares([1.0]), run_s=HOUR)
    assert policy(strategy="full").plan(start).interval_s == HOUR
    bound = longest_interval(1.0, 100 * HOUR, LossShares(0.1, 0.1), HOUR)
    assert (bound.interval_s, bound.by) == (HOUR, "the length of the run")
    assert policy().plan(replace(start, run_s=None)).interval_s == pytest.approx(20 * HOUR)  # the paper's, unbounded


def test_one_loss_alone_never_spends_more_than_the_budget() -> None:
    plan = policy().plan(Situation(CHEAP, 1000 * HOUR, loss_shares([0.75, 0.25]), run_s=10 * HOUR))
    assert plan.partial is not None
    assert plan.partial.bounded_by == "the worst single loss"
    assert plan.partial.interval_s * 0.75 / (10 * HOUR) == pytest.approx(0.1)


def test_a_given_interval_replaces_the_computed_one_but_not_the_budget() -> None:
    assert policy(interval_s=HOUR).plan(situation()).interval_s == HOUR
    assert policy(strategy="full", interval_s=HOUR).plan(situation()).interval_s == HOUR
    too_long = policy(interval_s=50 * HOUR).plan(situation())
    assert too_long.interval_s / HOUR == pytest.approx(44.8)


def test_spending_tightens_and_then_switches_to_full() -> None:
    chosen = policy()
    half = chosen.plan(situation(done_s=28 * HOUR, spent_pls=0.05))
    assert half.mode == "partial"
    assert half.interval_s / HOUR == pytest.approx(22.4)  # the worst single loss of what is left
    late = chosen.plan(situation(done_s=28 * HOUR, spent_pls=0.0999))
    assert late.mode == "full"
    assert "0.0999 of checkpoint.pls_budget=0.1 is spent" in late.reason
    gone = chosen.plan(situation(done_s=28 * HOUR, spent_pls=0.1))
    assert (gone.mode, gone.partial) == ("full", None)
    assert "only full recovery spends no more" in gone.reason
    asked = policy(strategy="cpr_mfu").plan(situation(done_s=28 * HOUR, spent_pls=0.09999))
    assert asked.mode == "full"
    assert "saving everything takes 330 s" in asked.reason


def test_more_failures_than_assumed_tighten() -> None:
    calm, stormy = (policy().plan(situation(mtbf_s=hours * HOUR)).interval_s for hours in (28, 4))
    assert stormy == pytest.approx(calm / 7)


def test_full_saves_besides_priority_saves_are_counted() -> None:
    plan = policy(full_every_rounds=4).plan(situation())
    assert plan.full_every_s == pytest.approx(4 * plan.interval_s)
    assert plan.partial is not None
    assert plan.partial.overhead.saving == pytest.approx(1.25 * 330 / plan.interval_s)
    assert policy(strategy="partial_vanilla", full_every_rounds=4).extra_full_saves == 0.0


def _orders(chosen: SavePolicy, ticks: int) -> list[SaveOrder]:
    """The saves of a run whose saves are always on time, one interval of 8 h."""
    plan = replace(chosen.plan(situation()), interval_s=8 * HOUR, save_every_s=HOUR, full_every_s=16 * HOUR)
    history, orders, in_round = SaveHistory(), [], 0
    for _ in range(ticks):
        now_s = chosen.next_save_s(plan, history)
        assert chosen.due(plan, history, now_s - 1.0) is None
        order = chosen.due(plan, history, now_s)
        assert order is not None
        orders.append(order)
        full = order.kind == "full"
        in_round = 0 if full or in_round == 8 else in_round + 1
        history = SaveHistory(
            now_s,
            now_s if full else history.last_full_s,
            now_s if order.consistent else history.last_consistent_s,
            now_s if full or in_round == 8 else history.covered_s,
        )
    return orders


def test_the_first_priority_save_is_full_and_one_every_so_many_rounds() -> None:
    orders = _orders(policy(), 33)
    assert [index for index, order in enumerate(orders) if order.kind == "full"] == [0, 16, 32]
    assert all(order.consistent == (order.kind == "full") for order in orders)


def test_vanilla_saves_everything_and_sometimes_consistently() -> None:
    chosen = policy(strategy="partial_vanilla", full_every_rounds=2)
    plan = chosen.plan(situation())
    first = chosen.due(plan, SaveHistory(), plan.interval_s)
    assert first == SaveOrder("full", consistent=True)
    saved_s = plan.interval_s
    history = SaveHistory(saved_s, saved_s, saved_s, saved_s)
    assert chosen.due(plan, history, 2 * saved_s) == SaveOrder("full", consistent=False)
    history = SaveHistory(2 * saved_s, 2 * saved_s, saved_s, 2 * saved_s)
    assert chosen.due(plan, history, 3 * saved_s) == SaveOrder("full", consistent=True)


def test_rows_older_than_a_tightened_plan_allows_are_saved_at_once_and_all() -> None:
    chosen = policy()
    plan = chosen.plan(situation(done_s=30 * HOUR, spent_pls=0.08))
    assert plan.mode == "partial"
    history = SaveHistory(last_s=28 * HOUR, last_full_s=5.6 * HOUR, last_consistent_s=5.6 * HOUR, covered_s=5.6 * HOUR)
    assert chosen.due(plan, history, 30 * HOUR) == SaveOrder("full", consistent=True)


def test_full_recovery_needs_a_consistent_save_at_once_after_the_switch() -> None:
    chosen = policy()
    plan = chosen.plan(situation(done_s=30 * HOUR, spent_pls=0.1))
    history = SaveHistory(29 * HOUR, 29 * HOUR, 5 * HOUR, 29 * HOUR)
    assert chosen.due(plan, history, 30 * HOUR) == SaveOrder("full", consistent=True)


def test_recovery_is_partial_while_it_fits() -> None:
    chosen = policy()
    plan = chosen.plan(situation())
    assert chosen.recovery(plan, pls=0.02, spent_pls=0.08).mode == "partial"
    refused = chosen.recovery(plan, pls=0.03, spent_pls=0.08)
    assert refused.mode == "full"
    assert "would cost PLS 0.03, but 0.02 of checkpoint.pls_budget=0.1" in refused.reason
    assert chosen.recovery(policy(strategy="full").plan(situation()), 0.0, 0.0).mode == "full"
    assert affordable(0.1, 0.0, 0.1).mode == "partial"


def test_decisions_depend_on_arguments_alone() -> None:
    chosen = policy()
    first = chosen.plan(situation())
    chosen.plan(situation(mtbf_s=MTBF_S / 9, spent_pls=0.1))
    assert chosen.plan(situation()) == first


def test_a_given_interval_below_what_a_save_takes_is_lifted_and_not_blamed_on_the_budget() -> None:
    for strategy in ("cpr_mfu", "partial_vanilla"):
        plan = policy(strategy=strategy, interval_s=1.0).plan(situation())
        assert (plan.mode, plan.strategy, plan.interval_s) == ("partial", strategy, 330.0)
        assert "set by checkpoint.interval_s=1, lifted to what saving everything takes" in plan.reason
    assert policy(strategy="full", interval_s=1.0).plan(situation()).interval_s == 330.0
    assert policy(strategy="cpr_mfu", interval_s=1.0, full_every_rounds=4).plan(situation()).interval_s == 330.0 * 1.25


def test_a_run_that_takes_longer_than_expected_expects_to_lose_nothing_more() -> None:
    plan = policy().plan(situation(done_s=60 * HOUR))
    assert plan.partial is not None
    assert (plan.partial.expected_pls, plan.partial.exact_expected_pls) == (0.0, 0.0)
    assert exact_expected_pls(HOUR, 28 * HOUR, 1 / 8, 56 * HOUR, -4 * HOUR) == 0.0


@pytest.mark.parametrize("changes", [{"mtbf_s": math.nan}, {"mtbf_s": 0.0}, {"done_s": -1.0}, {"spent_pls": math.nan}])
def test_impossible_situations_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        situation(**changes)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("pls_budget", 0.0, "checkpoint.strategy=full"),
        ("pls_budget", math.nan, "finite number"),
        ("priority_fraction", 0.005, "greater than or equal to 0.01"),
        ("mtbf_s", math.inf, "finite number"),
        ("interval_s", math.nan, "finite number"),
        ("expected_run_s", math.inf, "finite number"),
        ("max_consistent_age_s", 0.0, "greater than 0"),
        ("costs", {"save_s": math.inf}, "finite number"),
        ("retention", {"keep_every_s": math.nan}, "finite number"),
    ],
)
def test_settings_that_mean_nothing_are_refused(setting: str, value: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CheckpointConfig(**{setting: value})


def test_the_newest_consistent_save_never_becomes_older_than_allowed() -> None:
    cheap = replace(situation(), costs=CHEAP)
    for strategy in ("cpr_mfu", "partial_vanilla"):
        chosen = policy(strategy=strategy, free_overhead=0.0)
        plan = chosen.plan(cheap)
        assert plan.save_every_s > HOUR  # 5.6 h and 44.8 h: nothing else would save so soon
        assert chosen.next_save_s(plan, SaveHistory()) == HOUR
        history = SaveHistory(HOUR, HOUR, HOUR, HOUR)
        assert chosen.due(plan, history, 1.9 * HOUR) is None
        assert chosen.due(plan, history, 2 * HOUR) == SaveOrder("full", consistent=True)
        often = replace(plan, save_every_s=600.0)
        assert chosen.due(often, history, HOUR + 600) != SaveOrder("full", consistent=True)
        unbounded = policy(strategy=strategy, free_overhead=0.0, max_consistent_age_s=None).plan(cheap)
        assert chosen.next_save_s(unbounded, history) > 6 * HOUR
    plan = policy(strategy="cpr_mfu").plan(situation())  # a save takes 330 s: more than a twentieth of an hour
    assert chosen.next_save_s(plan, SaveHistory()) > HOUR


def test_saves_for_their_age_are_in_the_overhead() -> None:
    cheap = replace(situation(), costs=CHEAP)
    with_age, without = (policy(max_consistent_age_s=age).plan(cheap).partial for age in (HOUR, None))
    assert with_age is not None and without is not None
    assert with_age.overhead.saving - without.overhead.saving == pytest.approx(1 / HOUR)
