"""Full recovery in real runs: everybody goes back to one save, in a new timeline, and trains the rest again.

Runs are deterministic: after a rollback to an exact state they end with the very numbers of a run without kills, so
any row, dense parameter, optimizer state or data position that did not go back shows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoint.choosing import choose_complete
from checkpoint.ticket import parse_save_id
from services.config import RunConfig
from services.driver import run
from services.ray_session import ray_session
from services.summary import Summary
from tests.services.fault_tools import (
    DETERMINISTIC,
    Faults,
    assert_everything_committed,
    catalog,
    checksums,
    kill,
    newest_save,
    run_directory,
    shard_pids,
)
from tests.services.run_tools import events, tiny_run

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("nothing_left")]

ROWS, EPOCHS = 12_000, 2
TRAINED = EPOCHS * int(ROWS * 0.9)


@pytest.fixture(scope="module", autouse=True)
def ray_for_all() -> Iterator[None]:
    with ray_session(RunConfig.model_validate({"cluster": {"trainers": 4, "shards": 3}})):
        yield


def some_run(folder: Path, log: Path, **sections: dict[str, Any]) -> RunConfig:
    merged: dict[str, dict[str, Any]] = {
        "data": {"rows_per_split": 1000, "eval_fraction": 0.1},
        "train": {**DETERMINISTIC, "epochs": EPOCHS},
        "cluster": {"trainers": 1, "shards": 2},
        "embedding": {"optimizer": "exact_row_wise_adagrad"},
        "checkpoint": {"strategy": "full", "interval_s": 0.5},
        "failure": {"warm": False},
    }
    for name, section in sections.items():
        merged[name] = {**merged.get(name, {}), **section}
    return tiny_run(folder, log, **merged)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, log: Path) -> tuple[Summary, dict[str, object]]:
    """Without kills: the summary, and the checksums of what it saved last."""
    folder = tmp_path_factory.mktemp("calm")
    summary = run(some_run(folder, log))
    assert (summary.state, summary.failures) == ("SUCCEEDED", ())
    return summary, checksums(newest_save(folder))


def kill_shard(folder: Path, shard_id: int, saves: int = 0) -> bool:
    """Kill it once so many saves are complete in this timeline."""
    timeline = len(events(folder, "rolled_back"))
    if sum(event["save_id"].startswith(f"{timeline:04}-") for event in events(folder, "saved")) < saves:
        return False
    kill([shard_pids(folder)[shard_id]])
    return True


def check(folder: Path, summary: Summary, calm: tuple[Summary, dict[str, object]], rollbacks: int) -> None:
    """As if nothing had happened, but for what was trained again."""
    assert (summary.state, summary.error) == ("SUCCEEDED", None)
    back = events(folder, "rolled_back")
    assert [event["timeline"] for event in back] == [1 + number for number in range(rollbacks)]
    shard_failures = [failure for failure in summary.failures if failure.mode == "full"]
    assert len(shard_failures) == rollbacks
    for event, failure in zip(back, shard_failures, strict=True):
        assert event["lost_samples"] == failure.at_samples - event["samples"] >= 0
        assert failure.pls == 0.0 and failure.samples_at_risk == event["lost_samples"]
        assert failure.load_s is not None and failure.reschedule_s is not None and failure.replay_s is not None
    assert (summary.samples.trained, summary.samples.lost) == (TRAINED, 0)
    again = sum(event["lost_samples"] for event in back)
    assert summary.samples.repeated is not None and summary.samples.repeated >= again
    assert summary.pls is not None and summary.pls.spent == 0.0
    print("rolled back to", [(event["save_id"], event["samples"]) for event in back], "repeated", again)
    newest = newest_save(folder)
    assert_everything_committed(newest, TRAINED)
    assert summary.metrics == calm[0].metrics and summary.metrics is not None
    assert checksums(newest) == calm[1]


def _flip(path: Path) -> None:
    """The last byte becomes another one; twice, it is what it was."""
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


def test_two_rollbacks_and_saves_of_a_dead_timeline(
    tmp_path: Path, log: Path, calm: tuple[Summary, dict[str, object]]
) -> None:
    """A byte of the newest save is wrong when the first shard dies; right again later, it must not be used any more."""
    hidden: list[str] = []

    def damage_and_kill() -> bool:
        if len(events(tmp_path, "saved")) < 2:
            return False
        newest = newest_save(tmp_path)
        path = run_directory(tmp_path) / "checkpoints" / "saves" / newest.save_id / newest.files[0].path
        _flip(path)
        kill([shard_pids(tmp_path)[0]])
        deadline = time.monotonic() + 60.0
        while not events(tmp_path, "rolled_back"):
            assert time.monotonic() < deadline and not events(tmp_path, "failed")
            time.sleep(0.02)
        if path.exists():
            _flip(path)
        hidden.append(newest.save_id)
        return True

    fault = Faults(tmp_path, (0.2, damage_and_kill), (0.5, lambda: kill_shard(tmp_path, 1)))
    summary = run(some_run(tmp_path, log, checkpoint={"retention": {"keep_last": 50}}), fault)
    fault.check(2)
    check(tmp_path, summary, calm, 2)
    first, second = events(tmp_path, "rolled_back")
    assert any(hidden[0] in skipped for skipped in first["skipped"]) and first["save_id"] < hidden[0]
    for event in (first, second):
        _, sequence, *_ = parse_save_id(event["save_id"])  # type: ignore[misc]
        dead = [
            saved["save_id"]
            for saved in events(tmp_path, "saved")
            if saved["time"] < event["time"] and parse_save_id(saved["save_id"])[1] > sequence  # type: ignore[index]
        ]
        assert not {save.save_id for save in catalog(tmp_path).list()} & set(dead)
    assert second["save_id"] != hidden[0]
    assert choose_complete(catalog(tmp_path), exact=True).chain.newest.samples == TRAINED


@pytest.mark.slow
def test_with_nothing_saved_everybody_goes_back_to_the_beginning(
    tmp_path: Path, log: Path, calm: tuple[Summary, dict[str, object]]
) -> None:
    fault = Faults(tmp_path, (0.3, lambda: kill_shard(tmp_path, 0)))
    summary = run(some_run(tmp_path, log, checkpoint={"interval_s": 1000.0}), fault)
    fault.check(1)
    check(tmp_path, summary, calm, 1)
    assert events(tmp_path, "rolled_back")[0]["save_id"] is None


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.3, 1.0])
def test_a_second_shard_dies_during_the_rollback(
    tmp_path: Path, log: Path, calm: tuple[Summary, dict[str, object]], delay_s: float
) -> None:
    def kill_both() -> bool:
        if len(events(tmp_path, "saved")) < 2:
            return False
        pids = shard_pids(tmp_path)
        kill([pids[0]])
        deadline = time.monotonic() + 20.0
        while not events(tmp_path, "death"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(delay_s)
        kill([pids[1]])
        return True

    fault = Faults(tmp_path, (0.2, kill_both))
    summary = run(some_run(tmp_path, log), fault)
    fault.check(1)
    check(tmp_path, summary, calm, len(events(tmp_path, "rolled_back")))
    assert 1 <= len(events(tmp_path, "rolled_back")) <= 2


@pytest.mark.slow
def test_trainers_that_share_the_work_go_back_together(tmp_path: Path, log: Path) -> None:
    """Not deterministic: two trainers with a sync server and two threads each."""
    fault = Faults(tmp_path, (0.2, lambda: kill_shard(tmp_path, 0, saves=1)), (0.6, lambda: kill_shard(tmp_path, 1)))
    train = {"batch_size": 8, "hogwild_threads": 2, "epochs": 4}
    sizes = {"trainers": 2, "shards": 2, "spare_shards": 1}
    summary = run(
        tiny_run(
            tmp_path,
            log,
            data={"rows_per_split": 1000},
            train=train,
            cluster=sizes,
            checkpoint={"strategy": "full", "interval_s": 0.7},
            failure={"warm": False},
        ),
        fault,
    )
    fault.check(2)
    assert (summary.state, summary.error) == ("SUCCEEDED", None)
    assert summary.samples.trained == 4 * ROWS
    assert_everything_committed(newest_save(tmp_path), 4 * ROWS)
    back = events(tmp_path, "rolled_back")
    assert len(back) == 2 and back[1]["samples"] >= back[0]["samples"]
