"""The coordinator dies, alone and while it brings others back; and who dies or hangs while it does that."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.config import RunConfig
from services.driver import run
from services.progress import Progress
from services.ray_session import ray_session
from services.summary import Summary
from tests.services.fault_tools import (
    DETERMINISTIC,
    Faults,
    assert_everything_committed,
    checksums,
    kill,
    newest_save,
    run_directory,
    shard_pids,
)
from tests.services.run_tools import (
    events,
    role_processes,
    tiny_run,
    wait_until,
)

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("nothing_left")]

ROWS, EPOCHS = 12_000, 2
QUICK = {"heartbeat_s": 0.5, "heartbeat_timeout_s": 3.0, "lease_s": 10.0, "startup_timeout_s": 600.0}
"""Who waits for the start of somebody that hangs comes too late for the test's own timeout."""
PARTIAL = {"strategy": "partial_vanilla", "pls_budget": 1.0, "interval_s": 0.5}


@pytest.fixture(scope="module", autouse=True)
def ray_for_all() -> Iterator[None]:
    with ray_session(RunConfig.model_validate({"cluster": {"trainers": 4, "shards": 3}})):
        yield


def full_run(folder: Path, log: Path, **sections: dict[str, Any]) -> RunConfig:
    """Deterministic; whoever loses rows brings everybody back."""
    merged: dict[str, dict[str, Any]] = {
        "data": {"rows_per_split": 1000},
        "train": {**DETERMINISTIC, "epochs": EPOCHS},
        "cluster": {"trainers": 1, "shards": 2},
        "checkpoint": {"strategy": "full", "interval_s": 0.5},
        "failure": {**QUICK, "warm": False},
    }
    for name, section in sections.items():
        merged[name] = {**merged.get(name, {}), **section}
    return tiny_run(folder, log, **merged)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, log: Path) -> dict[str, object]:
    """Checksums of what a run without kills saved last."""
    folder = tmp_path_factory.mktemp("calm")
    assert run(full_run(folder, log)).state == "SUCCEEDED"
    return checksums(newest_save(folder))


def check(folder: Path, summary: Summary) -> None:
    assert (summary.state, summary.error) == ("SUCCEEDED", None)
    assert (summary.samples.trained, summary.samples.skipped) == (ROWS * EPOCHS, 0)
    assert_everything_committed(newest_save(folder), ROWS * EPOCHS)
    print([(failure.role, failure.mode) for failure in summary.failures], "repeated", summary.samples.repeated)


def kill_coordinator() -> None:
    kill(role_processes(os.getpid(), "Coordinator"))


def after_a_shard_died(folder: Path, delay_s: float, saves: int, act: Callable[[], None]) -> Callable[[], bool]:
    """Once so much was saved, kill shard 0, and ``act`` so long after that was noticed."""

    def strike() -> bool:
        if len(events(folder, "saved")) < saves:
            return False
        kill([shard_pids(folder)[0]])
        wait_until(lambda: bool(events(folder, "death")), 20.0, "it is noticed")
        time.sleep(delay_s)
        act()
        return True

    return strike


@pytest.mark.slow  # once, in each phase of a run, is in test_run_phases
def test_it_dies_twice_and_nobody_waits(tmp_path: Path, log: Path) -> None:
    fault = Faults(tmp_path, (0.1, kill_coordinator), (0.4, kill_coordinator), settle=0)

    def back_first(progress: Progress) -> None:
        if len(events(tmp_path, "coordinator_restarted")) == len(fault.injected):
            fault(progress)

    config = full_run(
        tmp_path,
        log,
        train={"batch_size": 8, "epochs": EPOCHS, "deterministic": False},
        cluster={"trainers": 2},
        checkpoint=PARTIAL,
        failure={"warm": True},
    )
    summary = run(config, back_first)
    fault.check(2)
    check(tmp_path, summary)
    assert [(failure.role, failure.mode) for failure in summary.failures] == [("coordinator", "warm")] * 2
    assert summary.samples.repeated == 0, "no report was lost, and none counted twice"


@pytest.mark.parametrize(
    "delay_s", [0.3, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.0, 0.1, 0.8, 1.5, 3.0))]
)
def test_it_dies_while_everybody_goes_back(tmp_path: Path, log: Path, calm: dict[str, object], delay_s: float) -> None:
    """Its successor brings everybody back again; the run ends with the very numbers of one without kills."""
    fault = Faults(tmp_path, (0.2, after_a_shard_died(tmp_path, delay_s, 2, kill_coordinator)))
    summary = run(full_run(tmp_path, log), fault)
    fault.check(1)
    check(tmp_path, summary)
    assert {"coordinator", "shard"} == {failure.role for failure in summary.failures}
    assert "full" in [failure.mode for failure in summary.failures if failure.role == "shard"]
    assert checksums(newest_save(tmp_path)) == calm


@pytest.mark.slow
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.3, 1.0])
def test_it_dies_while_a_shard_comes_back(tmp_path: Path, log: Path, warm: bool, delay_s: float) -> None:
    fault = Faults(tmp_path, (0.2, after_a_shard_died(tmp_path, delay_s, 1, kill_coordinator)))
    summary = run(full_run(tmp_path, log, checkpoint=PARTIAL, failure={"warm": warm}), fault)
    fault.check(1)
    check(tmp_path, summary)


SOMEBODY = [
    ("EmbeddingShard", signal.SIGSTOP, 0.0),
    ("EmbeddingShard", signal.SIGSTOP, 0.2),
    ("EmbeddingShard", signal.SIGSTOP, 1.0),
    ("Trainer", signal.SIGKILL, 0.0),
    ("Trainer", signal.SIGKILL, 0.1),
    ("Trainer", signal.SIGKILL, 0.4),
    ("Trainer", signal.SIGKILL, 1.5),
    ("Trainer", signal.SIGSTOP, 0.1),
    ("Trainer", signal.SIGSTOP, 2.0),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "number", "delay_s"),
    SOMEBODY,
)
def test_somebody_dies_or_hangs_while_everybody_goes_back(
    tmp_path: Path, log: Path, calm: dict[str, object], role: str, number: signal.Signals, delay_s: float
) -> None:
    def strike() -> None:
        shard = shard_pids(tmp_path)[1]
        os.kill(shard if role == "EmbeddingShard" else role_processes(os.getpid(), role)[0].pid, number)

    fault = Faults(tmp_path, (0.2, after_a_shard_died(tmp_path, delay_s, 2, strike)))
    summary = run(full_run(tmp_path, log), fault)
    fault.check(1)
    check(tmp_path, summary)
    assert checksums(newest_save(tmp_path)) == calm


@pytest.mark.slow
@pytest.mark.parametrize("warm", [False, True])
def test_a_spare_that_hangs_when_it_is_needed_is_not_waited_for(tmp_path: Path, log: Path, warm: bool) -> None:
    """Nobody polls heartbeats while the coordinator waits for it, and ``failure.startup_timeout_s`` is minutes."""

    def strike() -> bool:
        shards = shard_pids(tmp_path)
        spares = [p for p in role_processes(os.getpid(), "EmbeddingShard") if p.pid not in shards.values()]
        if not events(tmp_path, "saved") or not spares:
            return False
        spares[0].send_signal(signal.SIGSTOP)
        kill([shards[0]])
        return True

    fault = Faults(tmp_path, (0.2, strike))
    config = full_run(tmp_path, log, cluster={"spare_shards": 1}, checkpoint=PARTIAL, failure={"warm": warm})
    summary = run(config, fault)
    fault.check(1)
    check(tmp_path, summary)
    assert summary.failures[-1].mode == ("warm" if warm else "partial")


@pytest.mark.slow
def test_what_fails_when_all_is_trained_does_not_cost_the_model(tmp_path: Path, log: Path) -> None:
    """The storage is away when the last save is taken, and a shard dies then: it is tried again."""
    folder = run_directory(tmp_path) / "checkpoints"
    done: list[str] = []

    def at_end(progress: Progress) -> None:
        if not done and progress.total_samples:
            folder.rename(folder.with_name("aside"))
            folder.write_text("in the way")
            done.append("broken")
        elif done == ["broken"] and events(tmp_path, "save_failed"):
            kill([shard_pids(tmp_path)[0]])
            folder.unlink()
            folder.with_name("aside").rename(folder)
            done.append("mended")

    summary = run(full_run(tmp_path, log, checkpoint={"interval_s": 1000.0}, failure={"warm": True}), at_end)
    assert done == ["broken", "mended"]
    check(tmp_path, summary)
    assert [(failure.role, failure.mode) for failure in summary.failures] == [("shard", "warm")]
