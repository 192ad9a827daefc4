"""Shard processes killed in the middle of real runs: their memory is adopted, nothing is lost or applied twice."""

from __future__ import annotations

import os
import random
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
from tests.services.run_tools import events, tiny_run

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("nothing_left")]

ROWS = 12_000
DETERMINISTIC = {"deterministic": True, "lookahead": 0, "precision": "fp32", "batch_size": 8}


@pytest.fixture(scope="module", autouse=True)
def ray_for_all() -> Iterator[None]:
    with ray_session(RunConfig.model_validate({"cluster": {"trainers": 3, "shards": 4}})):
        yield


def some_run(folder: Path, log: Path, **sections: dict[str, Any]) -> RunConfig:
    sections["data"] = {"rows_per_split": 1000, "eval_fraction": 0.1, **sections.get("data", {})}
    return tiny_run(folder, log, **sections)


class ShardFault:
    """Signals the current process of a random shard at each of the given shares of the samples."""

    def __init__(self, folder: Path, shares: list[float], number: signal.Signals = signal.SIGKILL) -> None:
        self._folder, self._shares, self._number = folder, sorted(shares), number
        self._random = random.Random(0)
        self.injected: list[tuple[int, int]] = []

    def __call__(self, progress: Progress) -> None:
        if not self._shares or not progress.total_samples:
            return
        if progress.samples < self._shares[0] * progress.total_samples or progress.samples >= progress.total_samples:
            return
        if len(events(self._folder, "adopted")) < len(self.injected):
            return  # the last one is still being replaced
        pids: dict[str, int] = {}
        for event in events(self._folder):
            if event["kind"] == "loaded":
                pids = {address.split(".")[0]: pid for address, pid in event["pids"].items()}
            elif event["kind"] == "adopted":
                pids[event["address"].split(".")[0]] = event["pid"]
        pid = self._random.choice(sorted(pids.values()))
        os.kill(pid, self._number)
        self._shares.pop(0)
        self.injected.append((pid, progress.samples))


def check_warm(summary: Summary, folder: Path, fault: ShardFault, times: int, trained: int) -> None:
    print("injected faults:", len(fault.injected), fault.injected)
    assert len(fault.injected) == times
    assert (summary.state, summary.error) == ("SUCCEEDED", None)
    assert (summary.samples.trained, summary.samples.lost, summary.samples.repeated) == (trained, 0, 0)
    assert [(f.role, f.mode, f.pls) for f in summary.failures] == [("shard", "warm", 0.0)] * times
    adopted = events(folder, "adopted")
    assert len(adopted) == len(events(folder, "death")) == times
    assert all(event["torn_rows"] == {} for event in adopted)


@pytest.mark.parametrize(("spares", "shares"), [pytest.param(1, [0.2, 0.6], marks=pytest.mark.slow), (0, [0.3])])
@pytest.mark.parametrize("optimizer", ["exact_adagrad"])
def test_a_deterministic_run_ends_with_the_very_numbers_of_one_without_kills(
    tmp_path: Path, log: Path, optimizer: str, spares: int, shares: list[float]
) -> None:
    """Losses of every batch, predicted before it is trained on, and the last evaluation agree to the last bit."""
    runs = {}
    for name, fault in (("calm", None), ("killed", ShardFault(tmp_path / "killed", shares))):
        config = some_run(
            tmp_path / name,
            log,
            train=DETERMINISTIC,
            cluster={"trainers": 1, "shards": 2, "spare_shards": spares},
            embedding={"optimizer": optimizer},
        )
        runs[name] = run(config, fault) if fault else run(config)
        if fault:
            check_warm(runs[name], tmp_path / name, fault, len(shares), int(ROWS * 0.9))
            assert events(tmp_path / name, "adopted")[0]["spare"] == bool(spares)
    assert runs["calm"].failures == ()
    assert runs["killed"].metrics == runs["calm"].metrics and runs["calm"].metrics is not None


def test_trainers_on_both_threads_go_on_with_the_successor(tmp_path: Path, log: Path) -> None:
    fault = ShardFault(tmp_path, [0.3])
    config = some_run(
        tmp_path,
        log,
        train={"batch_size": 8, "hogwild_threads": 2},
        cluster={"trainers": 2, "shards": 2, "spare_shards": 0},
    )
    check_warm(run(config, fault), tmp_path, fault, 1, int(ROWS * 0.9))


@pytest.mark.slow
def test_shards_reached_by_ray_objects_are_followed_too(tmp_path: Path, log: Path) -> None:
    fault = ShardFault(tmp_path, [0.3])
    cluster = {"trainers": 1, "shards": 2, "transport": "object"}
    config = some_run(tmp_path, log, train={"batch_size": 16}, cluster=cluster)
    check_warm(run(config, fault), tmp_path, fault, 1, int(ROWS * 0.9))


@pytest.mark.slow
def test_a_stopped_shard_is_killed_before_its_memory_is_adopted(tmp_path: Path, log: Path) -> None:
    fault = ShardFault(tmp_path, [0.3], signal.SIGSTOP)
    config = some_run(
        tmp_path,
        log,
        train={"batch_size": 8},
        cluster={"trainers": 1, "shards": 2},
        failure={"heartbeat_s": 0.5, "heartbeat_timeout_s": 3.0, "lease_s": 6.0},
    )
    summary = run(config, fault)
    check_warm(summary, tmp_path, fault, 1, int(ROWS * 0.9))
    assert summary.failures[0].cause.startswith("no heartbeat for ")
    assert not psutil.pid_exists(fault.injected[0][0]), "a later SIGCONT finds nobody"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_kills_at_random_moments_change_nothing(tmp_path: Path, log: Path) -> None:
    """As above, over several epochs; each kill waits for the one before to be recovered."""
    runs, moments = {}, random.Random(1)
    shares = [moments.uniform(0.02, 0.9) for _ in range(20)]
    for name, fault in (("calm", None), ("killed", ShardFault(tmp_path / "killed", shares))):
        config = some_run(
            tmp_path / name,
            log,
            train={**DETERMINISTIC, "epochs": 6},
            cluster={"trainers": 1, "shards": 2},
            embedding={"optimizer": "exact_adagrad"},
            failure={"max_failures": 20},
        )
        runs[name] = run(config, fault) if fault else run(config)
        if fault:
            check_warm(runs[name], tmp_path / name, fault, 20, 6 * int(ROWS * 0.9))
    assert runs["killed"].metrics == runs["calm"].metrics and runs["calm"].metrics is not None
