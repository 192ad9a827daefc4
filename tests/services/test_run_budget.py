"""The quality budget in a living run: more failures than planned for tighten the saves, then change the mode."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from services.config import RunConfig
from services.driver import run
from services.ray_session import ray_session
from tests.services.fault_tools import Faults, assert_everything_committed, kill, newest_save, shard_pids
from tests.services.run_tools import assert_nothing_left, click_log, events, shared_files, tiny_run

pytestmark = pytest.mark.timeout(240)

BUDGET, ROWS = 0.2, 60_000


@pytest.fixture(scope="module", autouse=True)
def ray_for_all() -> Iterator[None]:
    with ray_session(RunConfig.model_validate({"cluster": {"trainers": 2, "shards": 3}})):
        yield


def test_failures_beyond_the_budget_tighten_the_interval_and_change_the_mode(tmp_path: Path) -> None:
    before = shared_files()
    shares = [0.15, 0.4, 0.5, 0.6, 0.7]

    def kill_late(shard_id: int) -> bool:
        """With more than half of an interval not saved: that spends more than half of what is left of the budget."""
        saved, plan = events(tmp_path, "saved"), events(tmp_path, "save_plan")[-1]
        since = 0.0 if not saved else (time.time() - saved[-1]["time"]) / plan["interval_s"]
        if plan["mode"] == "partial" and not 0.5 < since < 0.9:
            return False
        kill([shard_pids(tmp_path)[shard_id]])
        return True

    faults = [(share, partial(kill_late, number % 2)) for number, share in enumerate(shares)]
    fault = Faults(tmp_path, *faults)
    config = tiny_run(
        tmp_path,
        click_log(tmp_path / "clicks.tsv", ROWS),
        data={"rows_per_split": 5000},
        train={"batch_size": 8},
        cluster={"trainers": 2, "shards": 2, "spare_shards": 1},
        checkpoint={"strategy": "partial_vanilla", "pls_budget": BUDGET, "mtbf_s": 60.0, "expected_run_s": 12.0},
        failure={"warm": False, "heartbeat_s": 0.5},
    )
    summary = run(config, fault)
    assert_nothing_left(os.getpid(), before)
    fault.check(len(shares))
    assert (summary.state, summary.error, summary.samples.trained) == ("SUCCEEDED", None, ROWS)
    assert_everything_committed(newest_save(tmp_path), ROWS)

    plans = events(tmp_path, "save_plan")
    print([(plan["mode"], round(plan["interval_s"], 2), round(plan["spent_pls"], 4)) for plan in plans])
    assert plans[0]["mode"] == "partial" and plans[-1]["mode"] == "full"
    intervals = [plan["interval_s"] for plan in plans if plan["mode"] == "partial"]
    assert min(intervals) < intervals[0], "the interval is tightened before the mode changes"
    assert all(plan["reason"] for plan in plans)
    assert "budget" in plans[-1]["reason"]
    said = "\n".join(fault.said)
    assert "save interval tightened from" in said and "recovery mode is full now" in said

    modes = [failure.mode for failure in summary.failures]
    assert modes == sorted(modes, key=["partial", "full"].index) and set(modes) == {"partial", "full"}
    assert summary.pls is not None and 0.0 < summary.pls.spent <= BUDGET
    assert summary.pls.spent == pytest.approx(sum(failure.pls or 0.0 for failure in summary.failures))
