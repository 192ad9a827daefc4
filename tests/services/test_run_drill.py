"""Random kills of everybody, again and again, while a run trains: it finishes, and its rows add up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from services.config import RunConfig
from services.driver import run
from services.faults.plan import FaultPlan
from services.faults.running import RunningInjector
from services.ray_session import ray_session
from tests.services.run_tools import assert_nothing_left, click_log, events, shared_files, tiny_run

ROWS = 40_000
SHARES = {"shard": 0.4, "trainer": 0.2, "keeper": 0.1, "sync_server": 0.1, "coordinator": 0.1, "state_store": 0.1}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = shared_files()
    with ray_session(RunConfig.model_validate({"cluster": {"trainers": 3, "shards": 4}})):
        yield
        assert_nothing_left(os.getpid(), before)


def random_kills(kills: int, seconds: float) -> FaultPlan:
    """Each role is killed its share of ``kills`` times, at exponential gaps, over about ``seconds``."""
    faults = []
    for role, share in SHARES.items():
        count = round(share * kills)
        law = {"law": "exponential", "mean_s": seconds / (count + 1), "count": count}
        faults.append({"do": "kill", "whom": {"role": role}, "when": law})
    return FaultPlan.model_validate({"seed": 5, "start_samples": 1000, "patience_s": 30, "faults": faults})


@pytest.mark.parametrize(
    ("kills", "seconds", "epochs"),
    [
        pytest.param(10, 30.0, 8, marks=pytest.mark.timeout(300)),
        pytest.param(100, 1100.0, 250, marks=[pytest.mark.slow, pytest.mark.timeout(2400)]),
    ],
)
def test_random_kills_of_everybody(tmp_path: Path, kills: int, seconds: float, epochs: int) -> None:
    config = tiny_run(
        tmp_path,
        click_log(tmp_path / "clicks.tsv", ROWS),
        data={"rows_per_split": 2000},
        train={"batch_size": 8, "epochs": epochs},
        cluster={"trainers": 2, "shards": 2, "spare_shards": 1},
        checkpoint={"strategy": "partial_vanilla", "interval_s": 2.0, "pls_budget": 0.5},
        failure={"max_failures": 10 * kills},
    )
    driver = psutil.Process()
    descriptors, memory = driver.num_fds(), driver.memory_info().rss
    plan = random_kills(kills, seconds)
    said: list[str] = []
    with RunningInjector(plan, tmp_path / "runs" / "run") as injector:
        summary = run(config, lambda progress: said.extend(progress.messages))
        report = injector.report(30.0, stop=True)
    print(report)
    print("\n".join(said))
    assert (summary.state, summary.error) == ("SUCCEEDED", None)
    assert len(report.injected) == kills, "the run ended too soon, or somebody never came back"
    assert summary.samples.trained == epochs * ROWS, "each row once an epoch"
    roles = [failure.role for failure in summary.failures]
    for role in ("shard", "trainer", "keeper", "sync_server", "coordinator"):
        assert roles.count(role) >= round(SHARES[role] * kills)
    assert summary.pls is not None and summary.pls.spent <= summary.pls.budget
    assert [event for event in events(tmp_path) if event["kind"] == "failed"] == []
    assert driver.num_fds() < descriptors + 20
    assert driver.memory_info().rss < memory + (300 << 20)
