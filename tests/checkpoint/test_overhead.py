"""The overhead model: the published totals, the optimum, the break-even rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.overhead import Costs, break_even_interval_s, full_interval_s, full_overhead, partial_overhead
from checkpoint.pls import break_even_pls, partial_interval_s
from tests.checkpoint.headline import COSTS, HOUR, MTBF_S

times = st.floats(1.0, 1e6)


def test_headline_totals() -> None:
    young_s = full_interval_s(COSTS.save_s, MTBF_S)
    assert young_s / HOUR == pytest.approx(2.27, abs=0.005)
    assert full_overhead(young_s, COSTS, MTBF_S).total == pytest.approx(0.0839, abs=5e-5)
    assert partial_overhead(young_s, COSTS, MTBF_S).total == pytest.approx(0.0434, abs=5e-5)
    for pls, hours, total in ((0.1, 44.8, 0.0050), (0.05, 22.4, 0.0071), (0.02, 8.96, 0.0132)):
        interval_s = partial_interval_s(pls, MTBF_S, 1 / 8)
        assert interval_s / HOUR == pytest.approx(hours)
        assert partial_overhead(interval_s, COSTS, MTBF_S).total == pytest.approx(total, abs=6e-5)


@given(times, times, times, st.floats(0.1, 10.0))
def test_no_full_interval_costs_less_than_youngs(save_s: float, load_s: float, mtbf_s: float, factor: float) -> None:
    costs = Costs(save_s, load_s, 0.0, load_s, 0.0)
    best_s = full_interval_s(save_s, mtbf_s)
    best = full_overhead(best_s, costs, mtbf_s)
    assert best.saving == pytest.approx(best.lost_work)  # half and half
    assert best.total <= full_overhead(best_s * factor, costs, mtbf_s).total * (1 + 1e-12)


def test_above_the_break_even_pls_partial_is_cheaper() -> None:
    edge = break_even_pls(COSTS.save_s, MTBF_S, 1 / 8)
    assert edge == pytest.approx(0.0025, abs=1e-4)
    full = full_overhead(full_interval_s(COSTS.save_s, MTBF_S), COSTS, MTBF_S).total
    for factor, cheaper in ((0.99, False), (1.01, True)):
        partial = partial_overhead(partial_interval_s(edge * factor, MTBF_S, 1 / 8), COSTS, MTBF_S).total
        assert (partial < full) == cheaper


def test_break_even_interval() -> None:
    full = full_overhead(full_interval_s(COSTS.save_s, MTBF_S), COSTS, MTBF_S).total
    edge_s = break_even_interval_s(COSTS, MTBF_S, full, 0.25)
    assert partial_overhead(edge_s, COSTS, MTBF_S, 0.25).total == pytest.approx(full)
    slow = Costs(330.0, 0.0, 0.0, 1e9, 0.0)
    assert break_even_interval_s(slow, MTBF_S, full) == float("inf")


def test_more_full_saves_cost_their_share() -> None:
    plain, more = (partial_overhead(HOUR, COSTS, MTBF_S, extra) for extra in (0.0, 0.25))
    assert more.saving == pytest.approx(1.25 * plain.saving)
    assert (more.recovering, more.lost_work) == (plain.recovering, 0.0)


def test_negative_costs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"load_s must be at least 0 s, got -1"):
        Costs(1.0, -1.0, 0.0, 0.0, 0.0)
