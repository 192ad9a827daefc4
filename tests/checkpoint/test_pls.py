"""PLS: equations against drawn failures, the running account, rounds of priority saves."""

from __future__ import annotations

import numpy as np
import pytest

from checkpoint.manifest import SaveKind
from checkpoint.pls import (
    PlsAccount,
    ShardLoss,
    charge,
    covered_samples,
    exact_expected_pls,
    exact_expected_pls_of,
    expected_pls,
    loss_shares,
    partial_interval_s,
)
from tests.checkpoint.headline import HOUR, MTBF_S, RUN_S


@pytest.mark.parametrize(
    ("hours", "first", "drawn"), [(2.3, 0.00513, 0.00512), (8.96, 0.02, 0.0192), (44.8, 0.1, 0.0844)]
)
def test_expectations_of_the_reference(hours: float, first: float, drawn: float) -> None:
    assert expected_pls(hours * HOUR, MTBF_S, 1 / 8) == pytest.approx(first, rel=2e-3)
    assert exact_expected_pls(hours * HOUR, MTBF_S, 1 / 8, RUN_S) == pytest.approx(drawn, rel=0.012)
    assert partial_interval_s(expected_pls(hours * HOUR, MTBF_S, 1 / 8), MTBF_S, 1 / 8) == pytest.approx(hours * HOUR)


@pytest.mark.parametrize("interval_s", [HOUR, 9 * HOUR, 30 * HOUR, RUN_S, 2 * RUN_S])
def test_the_exact_sum_is_the_mean_of_drawn_failures(interval_s: float) -> None:
    random = np.random.default_rng(1)
    counts = random.poisson(RUN_S / MTBF_S, 40_000)
    at_s = random.random(int(counts.sum())) * RUN_S
    mean = float((at_s % interval_s).sum()) / RUN_S / 8 / counts.size
    assert exact_expected_pls(interval_s, MTBF_S, 1 / 8, RUN_S) == pytest.approx(mean, rel=0.02)


def test_the_exact_sum_of_unequal_gaps_and_of_a_rest() -> None:
    even = exact_expected_pls(RUN_S / 4, MTBF_S, 0.25, RUN_S)
    assert exact_expected_pls_of([RUN_S / 4] * 4, MTBF_S, 0.25, RUN_S) == pytest.approx(even)
    assert exact_expected_pls(RUN_S / 4, MTBF_S, 0.25, RUN_S, rest_s=RUN_S / 2) == pytest.approx(even / 2)
    assert even == pytest.approx(expected_pls(RUN_S / 4, MTBF_S, 0.25))  # no interval is cut short


def test_shares_of_unequal_shards_and_of_several_at_once() -> None:
    shares = [0.5, 0.3, 0.2]
    assert loss_shares(shares).mean == pytest.approx(1 / 3)
    assert loss_shares(shares).worst == 0.5
    two = loss_shares(shares, failing=2)
    assert (two.mean, two.worst) == (pytest.approx(2 / 3), 0.8)
    with pytest.raises(ValueError, match="2 shards must add up to 1"):
        loss_shares([0.5, 0.4])
    with pytest.raises(ValueError, match="4 of 3 shards"):
        loss_shares(shares, failing=4)


def test_the_account_is_the_papers_and_the_effective_one_counts_accesses() -> None:
    account = PlsAccount(total_samples=1000, total_accesses=26_000)
    assert account.record([ShardLoss(0, 0.25, 100, 650)]) == pytest.approx(0.025)  # (S_i - S_ckpt)/(S_total·N)
    both = [ShardLoss(1, 0.25, 200, 13), ShardLoss(3, 0.25, 200, 0)]
    assert account.record(both) == pytest.approx(0.1)
    assert charge(both, 1000) == pytest.approx(0.1)
    assert account.spent == pytest.approx(0.125)
    assert account.effective == pytest.approx(663 / 26_000)
    account.record([ShardLoss(1, 0.25, 10)])
    assert account.effective is None  # nobody counted: not invented
    with pytest.raises(ValueError, match="0 samples"):
        PlsAccount(0, 1)


def test_a_round_of_priority_saves_covers_like_a_save_of_everything() -> None:
    saves: list[tuple[SaveKind, int]] = [("full", 10), ("priority", 20), ("priority", 30), ("priority", 40)]
    assert covered_samples([], 0.25) == 0
    assert covered_samples(saves, 0.25) == 10
    saves.append(("priority", 50))
    assert covered_samples(saves, 0.25) == 50
    saves.append(("priority", 60))
    assert covered_samples(saves, 0.25) == 50
    assert covered_samples(saves, 0.3) == 50  # ⌈1/0.3⌉ = 4 saves
    saves.append(("delta", 70))
    assert covered_samples(saves, 0.25) == 70
    assert covered_samples([("full", 5), ("priority", 9)], 1.0) == 9


def test_a_run_without_samples_has_no_pls() -> None:
    with pytest.raises(ValueError, match="a run of 0 samples has no PLS"):
        charge([ShardLoss(0, 0.5, 10)], 0)
