"""Runs on clusters of several nodes, all on this machine: spread, transports, and what outlives its driver."""

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
from tests.services.run_tools import (
    Command,
    assert_nothing_left,
    click_log,
    events,
    role_processes,
    settings,
    shared_files,
    tiny_run,
    wait_until,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

OBJECT_STORE_BYTES = 100 * 1024 * 1024


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], Any]]:
    """``cluster(nodes, cpus)`` starts raylets; they end with the test."""
    from ray.cluster_utils import Cluster

    before, started = shared_files(), []
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))

    def start(nodes: int, cpus: int) -> Any:
        found = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": cpus, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False},
        )
        started.append(found)
        for _ in range(nodes - 1):
            found.add_node(num_cpus=cpus, object_store_memory=OBJECT_STORE_BYTES)
        return found

    yield start
    assert_nothing_left(os.getpid(), before)
    for one in started:
        one.shutdown()


@pytest.mark.parametrize("transport", ["auto", "object"])
def test_roles_spread_over_two_nodes_and_every_row_is_trained_once(
    tmp_path: Path, cluster: Callable[[int, int], Any], transport: str
) -> None:
    two = cluster(2, 2)
    config = tiny_run(
        tmp_path,
        click_log(tmp_path / "clicks.tsv", 1001),
        data={"rows_per_split": 100},
        train={"epochs": 2},
        cluster={"address": two.address, "trainers": 2, "shards": 2, "transport": transport},
        embedding={"sharding": "row_wise"},
    )
    nodes: dict[str, set[str]] = {"trainer": set(), "shard": set(), "keeper": set()}
    slabs: set[str] = set()

    def look(progress: Progress) -> None:
        import ray

        for actor in ray._private.state.actors().values() if progress.total_samples else ():
            role = actor["Name"].rpartition("/")[2].split("-")[0]
            if role in nodes and actor["State"] == "ALIVE":
                nodes[role].add(actor["Address"]["NodeID"])
        for process in role_processes(os.getpid(), "Keeper") if progress.total_samples else ():
            for fd in Path(f"/proc/{process.pid}/fd").iterdir():
                target = os.readlink(fd) if os.path.lexists(fd) else ""
                slabs.update([target] if "/slab-" in target else [])

    with ray_session(config):
        summary = run(config, look)
    assert (summary.state, summary.error) == ("SUCCEEDED", None)
    assert summary.samples.model_dump() == {
        "trained": 2002, "lost": 0, "repeated": 0, "skipped": 0, "rejected_lines": 0
    }  # fmt: skip
    assert {role: len(found) for role, found in nodes.items()} == {"trainer": 2, "shard": 2, "keeper": 2}
    pairs = {name.split("penumbra:")[1].rpartition("-")[0] for name in slabs}
    # Slabs where trainer and shard share a node, Ray objects for the other two pairs.
    expected = {"trainer-0.g1/slab-shard-0.g1", "trainer-1.g1/slab-shard-1.g1"} if transport == "auto" else set()
    assert pairs == expected


def test_slabs_across_nodes_are_refused_with_the_setting(tmp_path: Path, cluster: Callable[[int, int], Any]) -> None:
    two = cluster(2, 2)
    config = tiny_run(
        tmp_path,
        click_log(tmp_path / "clicks.tsv", 100),
        cluster={"address": two.address, "trainers": 2, "shards": 2, "transport": "slab"},
    )
    with ray_session(config):
        summary = run(config)
    assert summary.state == "FAILED" and summary.error is not None
    assert "cluster.transport=slab needs trainers and shards on one node; use auto" in summary.error


def test_actors_leave_a_cluster_that_outlives_their_killed_driver(
    tmp_path: Path, cluster: Callable[[int, int], Any]
) -> None:
    one = cluster(1, 4)
    config = settings(
        tmp_path,
        click_log(tmp_path / "clicks.tsv", 100_000),
        train={"batch_size": 8},
        cluster={"address": one.address, "trainers": 1, "shards": 1},
        failure={"heartbeat_s": 0.5, "heartbeat_timeout_s": 3.0, "lease_s": 6.0},
    )
    train = Command(tmp_path, config)
    train.until_training()
    assert len(role_processes(os.getpid())) == 4
    train.process.kill()
    assert train.end()[0] == -signal.SIGKILL
    killed_s = time.monotonic()
    print("injected faults: 1 SIGKILL of the driver")
    path = tmp_path / "runs/run/summary.json"
    wait_until(path.exists, 6.0 + 20, "the coordinator ends the run by itself")
    wait_until(lambda: not role_processes(os.getpid()), 20, "everybody leaves")
    assert time.monotonic() - killed_s > 3.0, "the lease was waited for"
    summary = Summary.read(path)
    assert (summary.state, summary.error) == ("CANCELLED", "the command that started the run is gone")
    assert summary.samples.trained > 0 and summary.samples.repeated == 0
    assert events(tmp_path, "ended")[0]["state"] == "CANCELLED"


def test_a_coordinator_that_nobody_uses_any_more_ends_itself(
    tmp_path: Path, cluster: Callable[[int, int], Any]
) -> None:
    one = cluster(1, 4)
    config = settings(
        tmp_path,
        click_log(tmp_path / "clicks.tsv", 100_000),
        train={"batch_size": 8},
        cluster={"address": one.address, "trainers": 1, "shards": 1},
        failure={"heartbeat_s": 0.5, "heartbeat_timeout_s": 3.0, "lease_s": 6.0},
    )
    train = Command(tmp_path, config)
    train.until_training()
    (coordinator,) = role_processes(os.getpid(), "Coordinator")
    train.process.kill()
    assert train.end()[0] == -signal.SIGKILL
    os.kill(coordinator.pid, signal.SIGKILL)
    print("injected faults: 1 SIGKILL of the driver, 1 of the coordinator")
    wait_until(
        lambda: coordinator.pid not in [process.pid for process in role_processes(os.getpid(), "Coordinator")],
        20,
        "the coordinator is dead",
    )
    # Ray starts it again, empty; it may not wait for ever for a run that nobody will give it.
    wait_until(lambda: len(role_processes(os.getpid(), "Coordinator")) == 1, 30, "Ray restarts it")
    wait_until(lambda: not role_processes(os.getpid()), 90, "everybody leaves")


def test_a_second_run_on_the_same_cluster_starts_where_the_first_ended(
    tmp_path: Path, cluster: Callable[[int, int], Any]
) -> None:
    one = cluster(1, 2)
    log = click_log(tmp_path / "clicks.tsv", 200)
    config = RunConfig.model_validate(settings(tmp_path, log, cluster={"address": one.address}))
    with ray_session(config):
        states = [run(config).state for _ in range(2)]
    assert states == ["SUCCEEDED"] * 2
    assert (tmp_path / "runs/run.1/summary.json").exists()
