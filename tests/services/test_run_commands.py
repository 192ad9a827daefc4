"""``penumbra train`` in processes of its own: how it ends when something, or the person, ends it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from services.summary import Summary
from tests.services.run_tools import Command, assert_all_dead, click_log, role_processes, settings

pytestmark = pytest.mark.timeout(120)

ROWS = 100_000
TWO_AND_TWO = {"trainers": 2, "shards": 2}


def command(folder: Path, **sections: dict[str, Any]) -> Command:
    """A run that takes far longer than its test."""
    return Command(
        folder, settings(folder, click_log(folder / "clicks.tsv", ROWS), train={"batch_size": 8}, **sections)
    )


def summary_of(folder: Path, printed: dict[str, Any] | None) -> Summary:
    summary = Summary.read(folder / "runs/run/summary.json")
    assert printed is not None and Summary.model_validate(printed) == summary
    return summary


def test_a_death_beyond_the_limit_fails_the_command_and_nothing_is_left(tmp_path: Path) -> None:
    train = command(tmp_path, cluster=TWO_AND_TWO, failure={"max_failures": 0})
    processes = train.until_training()
    (keeper,) = role_processes(train.process.pid, "Keeper")
    keeper.kill()
    print("injected faults: 1 SIGKILL of", keeper)
    code, printed = train.end(30)
    summary = summary_of(tmp_path, printed)
    assert (code, summary.state) == (1, "FAILED")
    assert summary.error is not None and summary.error.startswith("keeper 0 ")
    assert "its process died after" in summary.error and "failure.max_failures=0 replacements" in summary.error
    assert [(failure.role, failure.cause) for failure in summary.failures] == [("keeper", "its process died")]
    assert 0 < summary.samples.trained < ROWS
    assert_all_dead(processes, train.shm_before)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupt_stops_the_run_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    train = command(tmp_path, cluster={"trainers": 1, "shards": 2})
    processes = train.until_training()
    if number == signal.SIGINT:
        os.killpg(train.process.pid, number)  # what a terminal does on Ctrl-C
    else:
        train.process.send_signal(number)
    code, printed = train.end(40)
    summary = summary_of(tmp_path, printed)
    assert (code, summary.state, summary.error) == (1, "CANCELLED", "interrupted")
    assert 0 < summary.samples.trained < ROWS
    assert summary.samples.repeated == 0, "pushes under way were waited for and committed"
    assert summary.failures == ()
    assert_all_dead(processes, train.shm_before)


@pytest.mark.slow
def test_kill_9_of_the_command_leaves_nothing(tmp_path: Path) -> None:
    train = command(tmp_path, cluster=TWO_AND_TWO)
    processes = train.until_training()
    assert len(role_processes(train.process.pid)) == 7
    # Ray's own two agents leave too, but first try for a minute to reach their GCS.
    agents = {process.pid for process in role_processes(train.process.pid, "DashboardAgent", "RuntimeEnvAgent")}
    train.process.kill()
    print("injected faults: 1 SIGKILL of the command")
    code, printed = train.end()
    assert (code, printed) == (-signal.SIGKILL, None)
    assert_all_dead([process for process in processes if process.pid not in agents], train.shm_before)
