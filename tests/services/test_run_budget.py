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

BUDGET, ROWS, EPOCHS = 0.1, 60_000, 2


@pytest.fixture(scope="module", autouse=True)
def ray_for_all() -> Iterator[None]:
    with ray_session(RunConfig.model_validate({"cluster": {"trainers": 2, "shards": 3}})):
        yield


def test_failures_beyond_the_budget_tighten_the_interval_and_change_the_mode(tmp_path: Path) -> None:
    before = shared_files()
    shares = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]

    def kill_late(shard_id: int) -> bool:
        """With more than half of an interval not saved: that spends more than half of what is left of the budget."""
        saved, plan = events(tmp_path, "saved"), events(tmp_path, "save_plan")[-1]
        since = 0.0 if not saved else (time.time() - saved[-1]["time"]) / plan["interval_s"]
        if plan["mode"] == "partial" and since < 0.5:
            return False
        kill([shard_pids(tmp_path)[shard_id]])
        return True

    faults = [(share, partial(kill_late, number % 2)) for number, share in enumerate(shares)]
    fault = Faults(tmp_path, *faults)
    config = tiny_run(
        tmp_path,
        click_log(tmp_path / "clicks.tsv", ROWS),
        data={"rows_per_split": 5000},
        train={"batch_size": 8, "epochs": EPOCHS},
        cluster={"trainers": 2, "shards": 2, "spare_shards": 1},
        checkpoint={"strategy": "partial_vanilla", "pls_budget": BUDGET, "interval_s": 4.0},
        failure={"warm": False, "heartbeat_s": 0.5},
    )
    summary = run(config, fault)
    assert_nothing_left(os.getpid(), before)
    fault.check(len(shares))
    assert (summary.state, summary.error, summary.samples.trained) == ("SUCCEEDED", None, EPOCHS * ROWS)
    assert_everything_committed(newest_save(tmp_path), EPOCHS * ROWS)

    plans = events(tmp_path, "save_plan")
    print([(plan["mode"], round(plan["interval_s"], 2), round(plan["spent_pls"], 4)) for plan in plans])
    assert plans[0]["mode"] == "partial" and all(plan["reason"] for plan in plans)
    intervals = [plan["interval_s"] for plan in plans if plan["mode"] == "partial"]
    assert min(intervals) < intervals[0], "the interval is tightened before the mode changes"
    said = "\n".join(fault.said)
    assert "save interval tightened from" in said

    modes = [failure.mode for failure in summary.failures]
    print(modes)
    assert modes[0] == "partial" and "full" in modes, "who could not be paid for went back"
    deaths = [event["action"] for event in events(tmp_path, "death")]
    assert deaths.count("roll_back") == modes.count("full") == len(events(tmp_path, "rolled_back"))
    assert summary.pls is not None and 0.0 < summary.pls.spent <= BUDGET
    assert summary.pls.spent == pytest.approx(sum(failure.pls or 0.0 for failure in summary.failures))
