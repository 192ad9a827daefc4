"""Who else may die in the middle of a run, alone, together or at a bad moment: nobody hangs, every row is trained."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.config import RunConfig
from services.driver import run
from services.ray_session import ray_session
from services.summary import Summary
from tests.checkpoint.storage_faults import small_disk
from tests.services.fault_tools import (
    Faults,
    assert_everything_committed,
    catalog,
    kill,
    newest_save,
    run_directory,
    shard_pids,
)
from tests.services.run_tools import events, role_processes, tiny_run

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("nothing_left")]

ROWS = 24_000
QUICK = {"heartbeat_s": 0.5, "heartbeat_timeout_s": 3.0, "lease_s": 6.0}


@pytest.fixture(scope="module", autouse=True)
def ray_for_all() -> Iterator[None]:
    with ray_session(RunConfig.model_validate({"cluster": {"trainers": 3, "shards": 3}})):
        yield


def some_run(folder: Path, log: Path, **sections: dict[str, Any]) -> RunConfig:
    merged: dict[str, dict[str, Any]] = {
        "data": {"rows_per_split": 1000},
        "train": {"batch_size": 8},
        "cluster": {"trainers": 2, "shards": 2},
        "checkpoint": {"strategy": "partial_vanilla", "interval_s": 1.0, "pls_budget": 1.0},
        "failure": {"heartbeat_s": 0.5},
    }
    for name, section in sections.items():
        merged[name] = {**merged.get(name, {}), **section}
    return tiny_run(folder, log, **merged)


def kill_role(role: str, count: int = 1) -> Callable[[], bool]:
    """Of the oldest processes of a role."""

    def act() -> bool:
        processes = role_processes(os.getpid(), role)
        if len(processes) < count:
            return False
        kill(processes[:count])
        return True

    return act


def check(folder: Path, summary: Summary, rows: int, expected: list[tuple[str, str]]) -> None:
    """It succeeded, (role, mode) of its failures is as expected in any order, every row was trained and is saved."""
    assert (summary.state, summary.error) == ("SUCCEEDED", None)
    assert (summary.samples.trained, summary.samples.skipped) == (rows, 0)
    assert sorted((failure.role, failure.mode) for failure in summary.failures) == sorted(expected)
    assert_everything_committed(newest_save(folder), rows)
    print([(failure.role, failure.mode, failure.cause) for failure in summary.failures])


def test_one_role_after_another(tmp_path: Path, log: Path) -> None:
    """Keeper, sync server, trainer, and two shards at once, in one run."""

    def two_shards() -> None:
        kill(shard_pids(tmp_path).values())

    fault = Faults(
        tmp_path,
        (0.02, kill_role("Keeper")),
        (0.06, kill_role("SyncServer")),
        (0.1, kill_role("Trainer")),
        (0.2, two_shards),
    )
    summary = run(some_run(tmp_path, log, train={"batch_size": 8, "epochs": 3}), fault)
    fault.check(4)
    warm = ["keeper", "sync_server", "trainer", "shard", "shard"]
    check(tmp_path, summary, 3 * ROWS, [(role, "warm") for role in warm])
    assert summary.pls is not None and summary.pls.spent == 0.0
    assert events(tmp_path, "renewed")[0]["regions"] > 0
    assert len(events(tmp_path, "adopted")) == 2
    (replaced,) = events(tmp_path, "replaced")
    # The new keeper was given the trainer's memory by the trainer itself.
    assert replaced["dense_from"] == "its memory"
    # Whatever a dead trainer had not reported was trained again, and nothing else.
    assert summary.samples.repeated is not None and summary.samples.repeated <= replaced["requeued_rows"]


@pytest.mark.slow
@pytest.mark.parametrize("warm", [True, False])
def test_two_shards_at_once(tmp_path: Path, log: Path, warm: bool) -> None:
    fault = Faults(tmp_path, (0.4, lambda: kill(shard_pids(tmp_path).values())))
    summary = run(some_run(tmp_path, log, cluster={"spare_shards": 1}, failure={"warm": warm}), fault)
    fault.check(1)
    check(tmp_path, summary, ROWS, [("shard", "warm" if warm else "partial")] * 2)


@pytest.mark.slow
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("delay_s", [0.0, 0.6, 1.2])
def test_a_shard_dies_while_it_comes_back(tmp_path: Path, log: Path, warm: bool, delay_s: float) -> None:
    """Its successor is killed ``delay_s`` after its process is there: while it imports, restores, or just serves."""

    def kill_twice() -> bool:
        known = {process.pid for process in role_processes(os.getpid(), "EmbeddingShard")}
        kill([shard_pids(tmp_path)[0]])
        deadline = time.monotonic() + 20.0
        while not (new := [p for p in role_processes(os.getpid(), "EmbeddingShard") if p.pid not in known]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(delay_s)
        kill(new)
        return True

    fault = Faults(tmp_path, (0.4, kill_twice))
    summary = run(some_run(tmp_path, log, failure={"warm": warm}), fault)
    fault.check(1)
    assert (summary.state, summary.error, summary.samples.trained) == ("SUCCEEDED", None, ROWS)
    assert_everything_committed(newest_save(tmp_path), ROWS)
    assert {failure.role for failure in summary.failures} == {"shard"}


@pytest.mark.slow
@pytest.mark.parametrize("role", ["EmbeddingShard", "Trainer", "Keeper"])
def test_somebody_dies_while_a_save_is_written(tmp_path: Path, log: Path, role: str) -> None:
    """The save is given up, or complete; later ones succeed, and nothing half written is left."""

    def in_a_save() -> bool:
        saves, deadline = catalog(tmp_path), time.monotonic() + 1.5
        while not saves.incomplete():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return kill_role(role)()

    fault = Faults(tmp_path, (0.1, in_a_save), (0.4, in_a_save))
    config = some_run(tmp_path, log, train={"batch_size": 8, "epochs": 2}, checkpoint={"interval_s": 0.5})
    summary = run(config, fault)
    fault.check(2)
    assert (summary.state, summary.error, summary.samples.trained) == ("SUCCEEDED", None, 2 * ROWS)
    assert_everything_committed(newest_save(tmp_path), 2 * ROWS)
    abandoned = events(tmp_path, "save_failed")
    print("given up:", [event["error"] for event in abandoned])
    assert all(event["type"] == "SaveAbandonedError" for event in abandoned)
    assert len(events(tmp_path, "saved")) >= 3
    for save_id in catalog(tmp_path).incomplete():  # its ticket stays until the next sweep: its number is taken
        assert os.listdir(run_directory(tmp_path) / "checkpoints" / "saves" / save_id) == ["ticket.json"]


@pytest.mark.slow
@pytest.mark.parametrize("keeper_too", [False, True])
def test_the_only_trainer(tmp_path: Path, log: Path, keeper_too: bool) -> None:
    """It goes on from its own memory; where its keeper died with it, from the newest save."""

    def strike() -> bool:
        if not events(tmp_path, "saved"):
            return False
        keepers = role_processes(os.getpid(), "Keeper") if keeper_too else []
        kill([*keepers, *role_processes(os.getpid(), "Trainer")])
        return True

    fault = Faults(tmp_path, (0.3, strike), settle=1 + keeper_too)
    summary = run(some_run(tmp_path, log, cluster={"trainers": 1}), fault)
    fault.check(1)
    expected = [("keeper", "warm"), ("trainer", "partial")] if keeper_too else [("trainer", "warm")]
    check(tmp_path, summary, ROWS, expected)
    (replaced,) = events(tmp_path, "replaced")
    if keeper_too:
        saved = [e["save_id"] for e in events(tmp_path, "saved") if e["time"] < replaced["time"]]
        assert replaced["dense_from"] == f"save {saved[-1]}"
    else:
        assert replaced["dense_from"] == "its memory"


@pytest.mark.slow
@pytest.mark.parametrize("role", ["EmbeddingShard", "Trainer", "Keeper", "SyncServer"])
def test_a_hung_process_is_replaced_and_a_late_sigcont_finds_nobody(tmp_path: Path, log: Path, role: str) -> None:
    stopped: list[psutil.Process] = []

    def stop() -> None:
        stopped.append(role_processes(os.getpid(), role)[0])
        stopped[0].send_signal(signal.SIGSTOP)

    fault = Faults(tmp_path, (0.2, stop))
    config = some_run(tmp_path, log, train={"batch_size": 8, "epochs": 2}, failure=QUICK)
    summary = run(config, fault)
    fault.check(1)
    with contextlib.suppress(psutil.NoSuchProcess):
        stopped[0].send_signal(signal.SIGCONT)
        assert stopped[0].status() == psutil.STATUS_ZOMBIE, "it came back beside its successor"
    name = {"EmbeddingShard": "shard", "SyncServer": "sync_server"}.get(role, role.lower())
    check(tmp_path, summary, 2 * ROWS, [(name, "warm")])
    assert summary.failures[0].cause.startswith("no heartbeat for ")


# ---- storage ---------------------------------------------------------------------------------------------------------


def fill(path: Path) -> None:
    """Take what is left."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    with pytest.raises(OSError) as full:
        (path.parent / "more").write_bytes(b"x" * 65536)
    assert full.value.errno == errno.ENOSPC


@pytest.mark.slow
@pytest.mark.parametrize("fault_kind", ["full", "in the way"])
def test_storage_that_fails_for_some_seconds(tmp_path: Path, log: Path, fault_kind: str) -> None:
    disk = tmp_path / "disk"
    saves = disk / "checkpoints"
    url = {"url": str(saves)} if fault_kind == "full" else {}
    hurt_s = 3.0

    def break_it() -> bool:
        if not events(tmp_path, "saved"):
            return False
        if fault_kind == "full":
            fill(disk / "filler")
        else:
            folder = run_directory(tmp_path) / "checkpoints"
            folder.rename(folder.with_name("aside"))
            folder.write_text("in the way")
        return True

    def mend() -> bool:
        failed = events(tmp_path, "save_failed")
        if not failed or time.time() - failed[0]["time"] < hurt_s:
            return False
        if fault_kind == "full":
            (disk / "filler").unlink()
            (disk / "more").unlink(missing_ok=True)
        else:
            folder = run_directory(tmp_path) / "checkpoints"
            folder.unlink()
            folder.with_name("aside").rename(folder)
        return True

    fault = Faults(tmp_path, (0.1, break_it), (0.1, mend), settle=0)
    config = some_run(tmp_path, log, train={"batch_size": 8, "epochs": 3}, checkpoint={"interval_s": 0.5, **url})
    with small_disk(disk, 4 << 20) if fault_kind == "full" else contextlib.nullcontext():
        summary = run(config, fault)
        newest = newest_save(tmp_path, str(saves) if url else None)
    fault.check(2)
    assert (summary.state, summary.error, summary.samples.trained) == ("SUCCEEDED", None, 3 * ROWS)
    assert_everything_committed(newest, 3 * ROWS)
    failed = events(tmp_path, "save_failed")
    assert failed and all(0 <= event["pls_at_risk"] <= 1 and event["samples_at_risk"] >= 0 for event in failed)
    assert [event for event in events(tmp_path, "saved") if event["time"] > failed[-1]["time"]]
    said = [message for message in fault.said if "save" in message]
    print(said)
    assert any("training goes on" in message for message in said)
    assert any("saves succeed again" in message for message in said)
    assert summary.failures == ()
