"""Real runs hit from outside at chosen moments: in each phase, by a bad batch, and by a SIGCONT that comes too late."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint.chain import choose
from checkpoint.restore import restore
from services.config import RunConfig
from services.driver import run
from services.faults.fault_log import Report
from services.faults.plan import FaultPlan
from services.faults.run_files import fault_files
from services.faults.running import RunningInjector
from services.ray_session import ray_session
from services.summary import Summary
from tests.services.fault_tools import (
    DETERMINISTIC,
    assert_everything_committed,
    catalog,
    checksums,
    empty_rows,
    flat,
    newest_save,
    pieces_of,
    run_directory,
)
from tests.services.run_tools import events, tiny_run

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("nothing_left")]

ROWS = 12_000
TRAIN_ROWS = int(ROWS * 0.9)
BATCH, POISONED = 8, 4


@pytest.fixture(scope="module", autouse=True)
def ray_for_all() -> Iterator[None]:
    with ray_session(RunConfig.model_validate({"cluster": {"trainers": 3, "shards": 3}})):
        yield


def some_run(folder: Path, log: Path, **sections: dict[str, Any]) -> RunConfig:
    merged: dict[str, dict[str, Any]] = {
        "data": {"rows_per_split": 1000, "eval_fraction": 0.1},
        "train": {"batch_size": BATCH},
        "cluster": {"trainers": 1, "shards": 2, "spare_shards": 1},
        "embedding": {"optimizer": "exact_adagrad"},
        "checkpoint": {"strategy": "partial_vanilla", "interval_s": 0.3, "pls_budget": 1.0},
        "failure": {"heartbeat_s": 0.5, "max_failures": 200},
    }
    for name, section in sections.items():
        merged[name] = {**merged.get(name, {}), **section}
    return tiny_run(folder, log, **merged)


def run_under(plan: dict[str, Any], folder: Path, config: RunConfig) -> tuple[Summary, Report]:
    """The run and what was done to it: all that was planned, in the phases that were meant."""
    said: list[str] = []
    with RunningInjector(FaultPlan.model_validate({"seed": 3, "patience_s": 60, **plan}), run_directory(folder)) as it:
        summary = run(config, lambda progress: said.extend(progress.messages))
        report = it.report(30.0, stop=True)
    print(report)
    print("\n".join(said))
    assert not report.not_injected, "the run ended too soon, or somebody never came back"
    assert report.phase_hits == sum(record.wanted_phase is not None for record in report.injected)
    assert (summary.state, summary.error) == ("SUCCEEDED", None)
    assert not events(folder, "failed") and not events(folder, "saver_failed")
    return summary, report


def kill_in(phase: str, entry: int = 1, times: int = 1, role: str = "shard") -> dict[str, Any]:
    return {"do": "kill", "whom": {"role": role}, "when": {"phase": phase, "entry": entry, "times": times}}


@pytest.mark.parametrize(
    ("kills", "epochs", "strategy"),
    [
        (1, 2, "partial_vanilla"),
        pytest.param(20, 40, "partial_vanilla", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
        pytest.param(20, 40, "full", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_killed_in_each_phase_it_ends_with_the_very_numbers_of_a_calm_run(
    tmp_path: Path, log: Path, kills: int, epochs: int, strategy: str
) -> None:
    """Rows, optimizer state, dense parameters and metrics agree to the last bit: each push was applied exactly once.

    With chunked saves (``partial_vanilla``), and with consistent ones (``full``).
    """
    plan = {
        "start_samples": 500,
        "faults": [
            kill_in("lookup", entry=100, times=kills),
            kill_in("update", entry=150, times=kills),
            kill_in("save_copy", times=kills),
            kill_in("save_commit", times=max(1, kills // 4), role="coordinator"),
        ],
    }
    runs = {}
    for name in ("calm", "killed"):
        folder = tmp_path / name
        config = some_run(folder, log, train={**DETERMINISTIC, "epochs": epochs}, checkpoint={"strategy": strategy})
        if name == "calm":
            runs[name] = run(config)
            assert (runs[name].state, runs[name].failures) == ("SUCCEEDED", ())
        else:
            runs[name], report = run_under(plan, folder, config)
    killed, rows = runs["killed"], epochs * TRAIN_ROWS
    hit = {"lookup": kills, "update": kills, "save_copy": kills, "save_commit": max(1, kills // 4)}
    assert report.by_phase == hit
    assert [(f.role, f.mode) for f in killed.failures].count(("shard", "warm")) == 3 * kills
    assert {f.mode for f in killed.failures} == {"warm"}
    assert killed.pls is not None and killed.pls.spent == 0.0
    assert (killed.samples.trained, killed.samples.lost, killed.samples.repeated) == (rows, 0, 0)
    assert all(event["torn_rows"] == {} for event in events(tmp_path / "killed", "adopted"))
    assert killed.metrics == runs["calm"].metrics and killed.metrics is not None
    last = {name: newest_save(tmp_path / name) for name in runs}
    assert_everything_committed(last["killed"], rows)
    assert checksums(last["killed"]) == checksums(last["calm"]) and len(checksums(last["calm"])) >= 3


def check_poisoned(folder: Path, log: Path) -> None:
    """Each bad batch was named with its rows, and nothing of it is in what the run saved last."""
    bad = events(folder, "bad_batch")
    named = [re.fullmatch(rf"{re.escape(str(log))} rows (\d+)-(\d+)", event["where"]) for event in bad]
    print("poisoned batches:", [event["where"] for event in bad])
    assert [int(rows[2]) - int(rows[1]) + 1 for rows in named if rows] == [BATCH] * POISONED
    assert [event["loss"] for event in bad] == ["nan"] * POISONED
    saves, newest = catalog(folder), newest_save(folder)
    for shard_id in (0, 1):
        rows = empty_rows(pieces_of(folder, shard_id), "exact_adagrad")
        restore(saves, choose(saves.list(), save_id=newest.save_id).chain, rows)
        assert all(np.isfinite(values).all() for values in flat(rows).values())


@pytest.mark.parametrize(
    ("kills", "epochs"), [(1, 2), pytest.param(5, 30, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_killed_while_it_restores_and_given_poisoned_batches_a_run_goes_on(
    tmp_path: Path, log: Path, kills: int, epochs: int
) -> None:
    """Every second loss of shard 0 with its rows is followed by the death of the one that restores them."""
    losses = 2 * kills
    shard = {"role": "shard", "index": 0}
    plan = {
        "start_samples": 500,
        "faults": [
            {"do": "kill", "whom": shard, "when": {"phase": "update", "entry": 300, "times": losses}},
            {"do": "kill", "whom": shard, "when": {"phase": "restore", "entry": 2, "times": kills}},
            {"do": "poison_batch", "when": {"law": "uniform", "from_s": 0.0, "to_s": 1.0, "count": POISONED}},
        ],
    }
    config = some_run(tmp_path, log, train={"batch_size": BATCH, "epochs": epochs}, failure={"warm": False})
    summary, report = run_under(plan, tmp_path, config)
    assert report.by_phase == {"update": losses, "restore": kills}
    assert [(failure.role, failure.mode) for failure in summary.failures] == [("shard", "partial")] * losses
    restored = events(tmp_path, "restored")
    assert len(restored) == losses, "one that died while it restored is no loss of its own"
    assert summary.pls is not None and summary.pls.spent == pytest.approx(sum(event["pls"] for event in restored))
    skipped = BATCH * POISONED
    counts = (summary.samples.trained, summary.samples.skipped, summary.samples.repeated)
    assert counts == (epochs * TRAIN_ROWS - skipped, skipped, 0)
    assert_everything_committed(newest_save(tmp_path), epochs * TRAIN_ROWS)
    check_poisoned(tmp_path, log)
    assert summary.metrics is not None and np.isfinite([summary.metrics.logloss, summary.metrics.auc]).all()


# ---- stopped, replaced, and told to go on ----------------------------------------------------------------------------

QUICK = {"heartbeat_s": 0.5, "heartbeat_timeout_s": 2.0, "lease_s": 20.0}


def stopped_for(folder: Path, log: Path, role: str, hold_s: float, epochs: int) -> tuple[Summary, list[str]]:
    """A run with a process of ``role`` stopped for ``hold_s`` in its middle; what each SIGCONT found."""
    fault = {"do": "stop", "whom": {"role": role}, "hold_s": hold_s, "when": {"at_samples": 1000}}
    config = some_run(
        folder, log, train={"batch_size": BATCH, "epochs": epochs}, cluster={"trainers": 2}, failure=QUICK
    )
    summary, _ = run_under({"faults": [fault]}, folder, config)
    released = [json.loads(line) for line in fault_files(run_directory(folder)).log.read_text().splitlines()]
    released = [record for record in released if record["kind"] == "released"]
    assert [record["held_s"] >= hold_s for record in released] == [True], "the run ended before the SIGCONT"
    assert summary.samples.trained == epochs * TRAIN_ROWS
    assert_everything_committed(newest_save(folder), epochs * TRAIN_ROWS)
    return summary, [record["found"] for record in released]


@pytest.mark.slow
@pytest.mark.parametrize("role", ["shard", "keeper", "trainer", "sync_server", "spare"])
def test_a_sigcont_after_it_was_replaced_finds_nobody_while_the_run_goes_on(
    tmp_path: Path, log: Path, role: str
) -> None:
    summary, found = stopped_for(tmp_path, log, role, hold_s=3.5, epochs=4 if role == "shard" else 8)
    assert found == ["dead"], "it came back beside its successor"
    assert [(f.role, f.mode) for f in summary.failures] == ([] if role == "spare" else [(role, "warm")])
    (death,) = events(tmp_path, "death")
    assert death["cause"].startswith("no heartbeat for ") and death["address"].startswith(role)


@pytest.mark.slow
def test_a_coordinator_that_hangs_is_started_again(tmp_path: Path, log: Path) -> None:
    """The command that started the run notices; trainers and shards did not wait for it."""
    summary, found = stopped_for(tmp_path, log, "coordinator", hold_s=8.0, epochs=8)
    assert found == ["dead"], "it came back beside its successor"
    assert [(f.role, f.mode) for f in summary.failures] == [("coordinator", "warm")]
    assert not events(tmp_path, "death")


@pytest.mark.slow
@pytest.mark.parametrize("hold_s", [1.2, 2.2])
def test_a_coordinator_that_stood_still_does_not_take_the_others_for_hung(
    tmp_path: Path, log: Path, hold_s: float
) -> None:
    """Nobody could reach it meanwhile: their silence was its own."""
    summary, _ = stopped_for(tmp_path, log, "coordinator", hold_s, epochs=8)
    assert {failure.role for failure in summary.failures} <= {"coordinator"}
    assert not events(tmp_path, "death")
