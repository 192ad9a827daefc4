"""Faults from outside, in the middle of real runs on one Ray: who is replaced, what ends the run, what it says."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.config import RunConfig
from services.driver import run
from services.progress import Progress
from services.ray_session import ray_session
from services.summary import Summary
from tests.services.run_tools import (
    Fault,
    events,
    role_processes,
    tiny_run,
)

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_left")]

ROWS, EPOCHS = 12_000, 2
QUICK = {"heartbeat_s": 0.5, "heartbeat_timeout_s": 3.0, "lease_s": 6.0}


@pytest.fixture(scope="module", autouse=True)
def ray_for_all() -> Iterator[None]:
    with ray_session(RunConfig.model_validate({"cluster": {"trainers": 6, "shards": 4}})):
        yield


def slow_run(folder: Path, log: Path, **sections: dict[str, Any]) -> RunConfig:
    """Many tiny steps: several seconds of training, so that a fault hits its middle."""
    return tiny_run(
        folder,
        log,
        **{  # type: ignore[arg-type]
            "data": {"rows_per_split": 1000},
            "train": {"batch_size": 8, "epochs": EPOCHS},
            "cluster": {"trainers": 2, "shards": 2, "spare_shards": 0},
            **sections,
        },
    )


def check_replaced(summary: Summary, folder: Path, faults: int) -> None:
    """Every row was trained once an epoch; what the dead had not reported was trained again and is counted."""
    assert (summary.state, summary.error) == ("SUCCEEDED", None)
    assert (summary.samples.trained, summary.samples.lost, summary.samples.skipped) == (ROWS * EPOCHS, 0, 0)
    requeued = events(folder, "replaced")
    assert len(requeued) == len(summary.failures) == len(events(folder, "death")) == faults
    assert all(event["adopted"] for event in requeued), "it went on with the dense parameters of the dead"
    assert 0 <= summary.samples.repeated <= sum(event["requeued_rows"] for event in requeued)
    for failure in summary.failures:
        assert (failure.role, failure.mode) == ("trainer", "warm")
        assert 0 < failure.at_samples < ROWS * EPOCHS and failure.reschedule_s > 0


@pytest.mark.slow  # its short form is among the deaths of test_run_deaths
def test_a_killed_trainer_is_replaced_and_no_row_is_lost(tmp_path: Path, log: Path) -> None:
    fault = Fault("Trainer", signal.SIGKILL)
    summary = run(slow_run(tmp_path, log), fault)
    fault.check()
    check_replaced(summary, tmp_path, 1)
    assert summary.failures[0].cause == "its process died"
    assert events(tmp_path, "replaced")[0]["requeued_rows"] > 0
    print(f"repeated {summary.samples.repeated} of {events(tmp_path, 'replaced')[0]['requeued_rows']} queued again")


@pytest.mark.slow
def test_a_single_trainer_is_replaced_also_twice(tmp_path: Path, log: Path) -> None:
    fault = Fault("Trainer", signal.SIGKILL, times=2)
    summary = run(slow_run(tmp_path, log, cluster={"trainers": 1, "shards": 1}), fault)
    fault.check(2)
    assert (summary.state, summary.error) == ("SUCCEEDED", None)
    assert (summary.samples.trained, len(summary.failures)) == (ROWS * EPOCHS, 2)
    assert [event["address"] for event in events(tmp_path, "death")] == ["trainer-0.g1", "trainer-0.g2"]


@pytest.mark.slow
def test_a_stopped_trainer_is_killed_and_replaced(tmp_path: Path, log: Path) -> None:
    fault = Fault("Trainer", signal.SIGSTOP)
    summary = run(slow_run(tmp_path, log, failure=QUICK), fault)
    fault.check()
    check_replaced(summary, tmp_path, 1)
    assert summary.failures[0].cause.startswith("no heartbeat for ")
    assert not psutil.pid_exists(fault.injected[0][1])


@pytest.mark.slow
def test_more_deaths_than_allowed_fail_the_run_with_the_setting(tmp_path: Path, log: Path) -> None:
    fault = Fault("Trainer", signal.SIGKILL)
    summary = run(slow_run(tmp_path, log, failure={"max_failures": 0}), fault)
    fault.check()
    assert summary.state == "FAILED" and summary.error is not None
    assert "failure.max_failures=0 replacements are used up" in summary.error
    assert "trainer " in summary.error and "its process died" in summary.error
    assert [failure.mode for failure in summary.failures] == ["none"]
    assert 0 < summary.samples.trained < ROWS * EPOCHS


@pytest.mark.slow
def test_a_shard_that_dies_before_training_is_named(tmp_path: Path, log: Path) -> None:
    killed: list[int] = []

    def kill_early(progress: Progress) -> None:
        shards = role_processes(os.getpid(), "EmbeddingShard")
        if shards and progress.total_samples == 0 and not killed:
            shards[0].kill()
            killed.append(shards[0].pid)

    summary = run(slow_run(tmp_path, log), kill_early)
    assert len(killed) == 1
    assert summary.state == "FAILED" and summary.error is not None
    assert summary.error.startswith("shard ") and "its process died during " in summary.error
    assert [failure.role for failure in summary.failures] == ["shard"]
    assert summary.samples.trained == 0
