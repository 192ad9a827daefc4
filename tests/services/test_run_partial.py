"""Shards killed with their rows in the middle of real runs: only they go back, to the newest saved version of each row.

Trainers stand still (SIGSTOP) from just before a kill until its recovery is written, so that what shards hold before
and after can be compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from checkpoint.chain import choose
from checkpoint.restore import restore
from checkpoint.row_init import initial_rows
from services.config import RunConfig
from services.driver import run
from services.ray_session import ray_session
from services.summary import Summary
from tests.services.fault_tools import (
    Faults,
    Stopped,
    assert_same_rows,
    catalog,
    empty_rows,
    flat,
    kill,
    pieces_of,
    shard_actor,
    shard_pids,
    shard_rows,
)
from tests.services.run_tools import events, role_processes, tiny_run

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("nothing_left")]

ROWS = 30_000
SHARDS = 3
SEED = 7


@pytest.fixture(scope="module", autouse=True)
def ray_for_all() -> Iterator[None]:
    with ray_session(RunConfig.model_validate({"cluster": {"trainers": 2, "shards": SHARDS}})):
        yield


def some_run(folder: Path, log: Path, **sections: dict[str, Any]) -> RunConfig:
    merged: dict[str, dict[str, Any]] = {
        "data": {"rows_per_split": 1000},
        "train": {"batch_size": 8},
        "cluster": {"trainers": 2, "shards": SHARDS},
        "embedding": {"optimizer": "exact_adagrad"},
        "checkpoint": {"strategy": "partial_vanilla", "interval_s": 1.0, "pls_budget": 1.0},
        "failure": {"warm": False, "heartbeat_s": 0.2, "heartbeat_timeout_s": 60.0, "lease_s": 60.0},
    }
    for name, section in sections.items():
        merged[name] = {**merged.get(name, {}), **section}
    return tiny_run(folder, log, **merged).model_copy(update={"seed": SEED})


class LoseShard:
    """Kills a shard while trainers stand still, waits for its recovery, and compares every shard's rows."""

    def __init__(self, folder: Path, shard_id: int, saves: int, *, optimizer: str, keeper_too: bool = False) -> None:
        """``saves``: how many there have to be; with 0 none must have been begun."""
        self._folder, self._shard_id, self._saves = folder, shard_id, saves
        self._optimizer, self._keeper_too = optimizer, keeper_too

    def __call__(self) -> bool:
        folder, lost = self._folder, self._shard_id
        if len(events(folder, "saved")) < self._saves:
            return False
        actors = {shard_id: shard_actor(folder, shard_id) for shard_id in range(SHARDS)}
        with Stopped():
            before = {shard_id: shard_rows(actor) for shard_id, actor in actors.items()}
            restored = len(events(folder, "restored"))
            keepers = role_processes(os.getpid(), "Keeper") if self._keeper_too else []
            kill([*keepers, shard_pids(folder)[lost]])
            deadline = time.monotonic() + 30.0
            while len(events(folder, "restored")) == restored:
                assert time.monotonic() < deadline, "the shard was not restored"
                time.sleep(0.02)
            event = events(folder, "restored")[-1]
            handle = shard_actor(folder, lost) if not event["spare"] else _only_spare(folder, lost)
            after = shard_rows(handle)
            for shard_id, actor in actors.items():
                if shard_id != lost:
                    assert_same_rows(shard_rows(actor), before[shard_id])
            assert_same_rows(after, self._expected(event))
            if self._saves:
                assert np.count_nonzero(after["weights"] != before[lost]["weights"]), "nothing had been lost"
        return True

    def _expected(self, event: dict[str, Any]) -> dict[str, np.ndarray]:
        """From the saves, read by themselves; or the first values."""
        rows = empty_rows(pieces_of(self._folder, self._shard_id), self._optimizer)
        saves = catalog(self._folder)
        if not self._saves:
            assert event["save_ids"] == [] and not saves.list()
            for one in rows:
                piece = one.piece
                initial_rows(SEED, piece.table, piece.rows, piece.dim, 0, piece.rows, out=one.weights.numpy())
                for state in one.states.values():
                    state.zero_()
            return flat(rows)
        newest = [saved["save_id"] for saved in events(self._folder, "saved")][-1]
        assert event["save_ids"][-1] == newest
        report = restore(saves, choose(saves.list(), save_id=newest).chain, rows)
        assert dict(report.rows_by_save) == event["rows_by_save"]
        return flat(rows)


def _only_spare(folder: Path, shard_id: int) -> Any:
    run_id = events(folder, "started")[-1]["run_id"]
    for generation in range(1, 9):
        try:
            actor = ray.get_actor(f"{run_id}/spare-0.g{generation}", namespace="penumbra")
        except ValueError:
            continue
        if ray.get(actor.stats.remote(), timeout=10.0):  # a spare that is idle has none
            return actor
    raise AssertionError(f"no former spare is shard {shard_id}")


def check_charges(folder: Path, summary: Summary, losses: int, rows: int) -> None:
    """PLS is share × (samples − covered) / total of each event's own numbers; all rows trained, nobody rolled back."""
    assert (summary.state, summary.error) == ("SUCCEEDED", None)
    assert (summary.samples.trained, summary.samples.repeated) == (rows, 0)
    restored = events(folder, "restored")
    shard_failures = [failure for failure in summary.failures if failure.role == "shard"]
    assert len(restored) == len(shard_failures) == losses
    assert [failure.mode for failure in shard_failures] == ["partial"] * losses
    spent = 0.0
    for event, failure in zip(restored, shard_failures, strict=True):
        own = sum(piece.numel for piece in pieces_of(folder, failure.index))
        everything = sum(piece.numel for shard_id in range(SHARDS) for piece in pieces_of(folder, shard_id))
        assert event["share"] == pytest.approx(own / everything)
        assert event["total_samples"] == rows
        lost = event["at_samples"] - event["covered_samples"]
        assert failure.at_samples == event["at_samples"] and failure.samples_at_risk == lost >= 0
        assert event["pls"] == failure.pls == pytest.approx(event["share"] * lost / rows)
        spent += event["pls"]
        assert event["pls_spent"] == pytest.approx(spent)
        covering = [saved["samples"] for saved in events(folder, "saved") if saved["time"] < event["time"]]
        assert event["covered_samples"] in [0, *covering]
        assert failure.detect_s is not None and failure.reschedule_s is not None and failure.load_s is not None
    assert summary.pls is not None and summary.pls.spent == pytest.approx(spent)
    assert summary.samples.lost == round(summary.pls.spent * rows)
    effective = summary.pls.effective
    print(f"PLS spent {spent:.5f}, effective {effective}")
    # Each loss is of one shard's accesses since what is saved; one heartbeat of them may not have been counted.
    assert effective is not None and 0.0 <= effective <= 1.5 * spent + 0.01


def test_a_shard_without_memory_comes_back_with_the_newest_saved_rows(tmp_path: Path, log: Path) -> None:
    """First with nothing saved yet, then from saves, by a new process each time; the others are not touched."""
    first = LoseShard(tmp_path, 1, 0, optimizer="exact_adagrad")
    later = LoseShard(tmp_path, 2, 2, optimizer="exact_adagrad")
    fault = Faults(tmp_path, (0.01, first), (0.4, later))
    config = some_run(tmp_path, log, cluster={"spare_shards": 0}, checkpoint={"interval_s": 1.5})
    summary = run(config, fault)
    fault.check(2)
    check_charges(tmp_path, summary, 2, ROWS)


@pytest.mark.slow
def test_a_shard_and_its_keeper_at_once_with_a_spare(tmp_path: Path, log: Path) -> None:
    fault = Faults(tmp_path, (0.3, LoseShard(tmp_path, 0, 1, optimizer="exact_adagrad", keeper_too=True)), settle=2)
    config = some_run(tmp_path, log, cluster={"spare_shards": 1}, failure={"warm": True})
    summary = run(config, fault)
    fault.check(1)
    check_charges(tmp_path, summary, 1, ROWS)
    assert events(tmp_path, "restored")[0]["spare"]
    assert [failure.role for failure in summary.failures] == ["keeper", "shard"]


@pytest.mark.parametrize(
    ("strategy", "optimizer", "spares"),
    [
        pytest.param("cpr_adagrad", "exact_row_wise_adagrad", 1, marks=pytest.mark.slow),
        pytest.param("cpr_mfu", "exact_sgd", 0, marks=pytest.mark.slow),
        pytest.param("cpr_ssu", "exact_adagrad", 1, marks=pytest.mark.slow),
        pytest.param("cpr_scar", "exact_row_wise_adagrad", 0, marks=pytest.mark.slow),
        pytest.param("cpr_adagrad", "exact_adagrad", 0, marks=pytest.mark.slow),
        pytest.param("partial_vanilla", "exact_row_wise_adagrad", 1, marks=pytest.mark.slow),
    ],
)
def test_newest_versions_out_of_full_and_priority_saves(
    tmp_path: Path, log: Path, strategy: str, optimizer: str, spares: int
) -> None:
    fault = Faults(tmp_path, (0.3, LoseShard(tmp_path, 1, 4, optimizer=optimizer)))
    config = some_run(
        tmp_path,
        log,
        cluster={"spare_shards": spares},
        embedding={"optimizer": optimizer},
        checkpoint={"strategy": strategy, "interval_s": 2.0 if strategy.startswith("cpr") else 0.5},
    )
    summary = run(config, fault)
    fault.check(1)
    check_charges(tmp_path, summary, 1, ROWS)
    (event,) = events(tmp_path, "restored")
    assert event["spare"] == bool(spares)
    if strategy.startswith("cpr"):
        assert any(save_id.endswith("-priority") for save_id in event["save_ids"])
        assert len([1 for rows in event["rows_by_save"].values() if rows]) > 1, "rows came from several saves"
