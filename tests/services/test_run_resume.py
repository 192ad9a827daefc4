"""Whole jobs that were killed go on from their newest complete consistent save, with its data position."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.config import RunConfig
from services.driver import run
from services.ray_session import ray_session
from services.run_directory import NothingToResumeError
from tests.services.fault_tools import (
    DETERMINISTIC,
    Faults,
    assert_everything_committed,
    catalog,
    checksums,
    kill,
    newest_save,
    run_directory,
)
from tests.services.run_tools import (
    ROLES,
    Command,
    assert_all_dead,
    assert_nothing_left,
    click_log,
    events,
    role_processes,
    settings,
    shared_files,
    tiny_run,
    wait_until,
)

pytestmark = pytest.mark.timeout(240)

ROWS = 12_000


@pytest.fixture(scope="module")
def ray_for_all() -> Iterator[None]:
    with ray_session(RunConfig.model_validate({"cluster": {"trainers": 3, "shards": 4}})):
        yield


@pytest.fixture
def in_process(ray_for_all: None) -> Iterator[None]:
    before = shared_files()
    yield
    assert_nothing_left(os.getpid(), before)


def kill_every_role() -> None:
    """Coordinator, keeper, shards, trainers, sync server: nothing that was in memory is left."""
    kill(role_processes(os.getpid(), *ROLES))


def saved_once(folder: Path) -> bool | None:
    """Kill everybody once something was saved."""
    if not events(folder, "saved"):
        return False
    return kill_every_role()


# ---- the command killed with all its processes ----------------------------------------------------------------------


def killed_again_and_again(folder: Path, config: dict[str, Any], times: int, seed: int, rows: int) -> dict[str, int]:
    """Runs the command and kills everything ``times`` times; returns how often in which phase.

    ``rows`` of data are shared out over the lives: however fast the machine is, a life ends while there are some left.
    """
    moments, phases = random.Random(seed), {"anywhere": 0, "while a save was written": 0}
    trained = 0
    for life in range(times):
        command = Command(folder, config, verb="train" if life % 2 == 0 else "resume")
        lives = len(events(folder, "loaded"))

        def loaded(known: int = lives, process: subprocess.Popen[bytes] = command.process) -> bool:
            assert process.poll() is None, (folder / "stderr").read_text() + (folder / "stdout").read_text()
            # Before anything was saved there is nothing to resume.
            return len(events(folder, "loaded")) > known and bool(events(folder, "saved"))

        wait_until(loaded, 90.0, "rows are loaded")
        phase = "anywhere"
        if life % 2:
            saves = catalog(folder)
            deadline = time.monotonic() + 20.0
            while not (writing := saves.incomplete()) and time.monotonic() < deadline:
                time.sleep(0.002)
            phase = "while a save was written" if writing else phase
        else:
            deadline, share = time.monotonic() + moments.uniform(0.5, 3.0), rows * (life + 1) // (times + 1)
            while time.monotonic() < deadline and max(e["samples"] for e in events(folder, "saved")) < share:
                time.sleep(0.02)
        own = psutil.Process(command.process.pid)
        everything = [own, *own.children(recursive=True)]
        assert command.process.poll() is None, "it ended before it could be killed: give it more rows"
        kill(everything)
        assert_all_dead(everything, command.shm_before | shared_files())
        command.end()
        phases[phase] += 1
        resumed = events(folder, "resumed")
        if resumed:  # what it went on from was the newest consistent save that the timelines before it left
            assert resumed[-1]["samples"] >= trained, "went back behind a save it had gone on from"
            trained = resumed[-1]["samples"]
    return phases


def check_lineage(folder: Path, rows: int) -> None:
    """Each life goes on from the last consistent save of the one before; only then are all rows committed once."""
    newest: dict[str, Any] | None = None
    lives = 0
    for event in events(folder):
        if event["kind"] == "started":
            lives += 1
        if event["kind"] == "saved" and event["consistent"]:
            assert newest is None or event["samples"] >= newest["samples"]
            newest = event
        if event["kind"] == "resumed":
            assert newest is not None
            # A save that was committed just before the kill may have no event.
            assert event["samples"] >= newest["samples"] and event["save_id"] >= newest["save_id"]
    assert_everything_committed(newest_save(folder), rows)
    print("lives:", lives, "resumed from", [event["samples"] for event in events(folder, "resumed")])


@pytest.mark.parametrize(
    ("kills", "seed"), [(2, 0), pytest.param(20, 1, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_everything_killed_again_and_again_still_trains_each_row_once(tmp_path: Path, kills: int, seed: int) -> None:
    rows = 20_000 * (kills + 1)
    config = settings(
        tmp_path,
        click_log(tmp_path / "clicks.tsv", rows),
        data={"rows_per_split": 3000},
        train={"batch_size": 8},
        cluster={"trainers": 2, "shards": 2},
        checkpoint={"strategy": "full", "interval_s": 0.5},
    )
    before = shared_files()
    phases = killed_again_and_again(tmp_path, config, kills, seed, rows)
    print("kills by phase:", phases)
    assert sum(phases.values()) == kills and phases["while a save was written"] > 0
    command = Command(tmp_path, config)
    code, summary = command.end(200.0)
    stderr = (tmp_path / "stderr").read_text()
    assert code == 0 and summary is not None, stderr
    assert (summary["state"], summary["samples"]["trained"], summary["samples"]["lost"]) == ("SUCCEEDED", rows, 0)
    check_lineage(tmp_path, rows)
    resumed = events(tmp_path, "resumed")[-1]
    said = (
        f"resumed at step {resumed['samples'] // 8:,}, {resumed['samples']:,} samples, from save {resumed['save_id']}"
    )
    # Before it come only the stages of starting up.
    first = next(line for line in stderr.splitlines() if not line.startswith("STARTING "))
    assert said in first and str(run_directory(tmp_path) / "checkpoints") in first
    assert shared_files() <= before


# ---- what is resumed, and what is not -------------------------------------------------------------------------------


def test_what_is_resumed_and_what_is_refused(tmp_path: Path, log: Path, in_process: None) -> None:
    def config(**sections: dict[str, Any]) -> RunConfig:
        merged = {
            "data": {"rows_per_split": 1000},
            "train": {"batch_size": 8, "epochs": 2},
            "cluster": {"trainers": 2, "shards": 1},
            "checkpoint": {"strategy": "full", "interval_s": 0.4},
            "failure": {"max_failures": 0},  # a restarted coordinator would bring everybody back
        }
        for name, section in sections.items():
            merged[name] = {**merged.get(name, {}), **section}
        return tiny_run(tmp_path, log, **merged)

    fault = Faults(tmp_path, (0.2, lambda: saved_once(tmp_path)))
    killed = run(config(), fault)
    fault.check(1)
    assert killed.state == "FAILED" and "failure.max_failures=0" in (killed.error or "")
    saves = {save.save_id: checksums(save) for save in catalog(tmp_path).list()}

    fewer = click_log(tmp_path / "fewer.tsv", ROWS - 500)
    other_data = run(config(data={"train": str(fewer)}))
    assert other_data.state == "FAILED"
    assert "data position is of other splits" in (other_data.error or "")
    other_model = run(config(model={"embedding_dim": 8, "dense_arch": [8, 8]}))
    assert other_model.state == "FAILED"
    assert re.search(r"table|dim", other_model.error or ""), other_model.error
    other_dense = run(config(model={"over_arch": [16, 1]}))
    assert other_dense.state == "FAILED"
    print(other_data.error, other_model.error, other_dense.error, sep="\n")
    left = {save.save_id: checksums(save) for save in catalog(tmp_path).list()}
    assert left == saves, "a refused run changed what was saved"

    summary = run(config(cluster={"trainers": 1, "shards": 3}), resume="required")
    assert (summary.state, summary.error) == ("SUCCEEDED", None)
    assert summary.samples.trained == 2 * ROWS
    check_lineage(tmp_path, 2 * ROWS)
    assert 0 < events(tmp_path, "resumed")[-1]["samples"] < 2 * ROWS

    with pytest.raises(NothingToResumeError, match="has succeeded"):
        run(config(), resume="required")
    assert newest_save(tmp_path).samples == 2 * ROWS


@pytest.mark.slow
def test_a_new_name_and_a_run_that_succeeded_begin_anew(tmp_path: Path, log: Path, in_process: None) -> None:
    config = tiny_run(
        tmp_path,
        log,
        train={"batch_size": 8, "epochs": 2},
        checkpoint={"strategy": "full", "interval_s": 0.4},
        failure={"max_failures": 0},
    )
    fault = Faults(tmp_path, (0.2, lambda: saved_once(tmp_path)))
    run(config, fault)
    fault.check(1)
    other = run(config.model_copy(update={"name": "other"}))
    assert (other.state, other.samples.trained) == ("SUCCEEDED", 2 * ROWS)
    assert "resumed" not in (tmp_path / "runs" / "other" / "events.jsonl").read_text()
    assert run(config).samples.trained == 2 * ROWS
    assert len(events(tmp_path, "resumed")) == 1
    again = run(config)
    assert (again.state, again.samples.trained) == ("SUCCEEDED", 2 * ROWS)
    assert events(tmp_path, "resumed") == [], "it had succeeded, so this is another run"
    assert (tmp_path / "runs" / "run.1" / "summary.json").exists()


def test_nothing_to_resume_is_an_error(tmp_path: Path, log: Path) -> None:
    command = Command(tmp_path, settings(tmp_path, log), verb="resume")
    code, printed = command.end(60.0)
    assert code == 1 and printed is not None and "there is no run 'run'" in printed["error"]
    directory = run_directory(tmp_path)
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(json.dumps(settings(tmp_path, log)))
    code, printed = Command(tmp_path, settings(tmp_path, log), verb="resume").end(60.0)
    assert code == 1 and printed is not None
    assert "cannot be resumed" in printed["error"] and "--allow-fresh" in printed["error"]


# ---- exactly ---------------------------------------------------------------------------------------------------------

OPTIMIZERS = [("adam", "exact_adagrad"), ("adagrad", "exact_row_wise_adagrad"), ("sgd", "exact_sgd")]


@pytest.mark.parametrize(
    ("dense", "embedding"),
    [OPTIMIZERS[0], *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OPTIMIZERS[1:])],
)
def test_killed_and_resumed_ends_with_the_very_numbers_of_a_calm_run(
    tmp_path: Path, log: Path, dense: str, embedding: str, in_process: None
) -> None:
    """Metrics, every embedding row, dense parameter and optimizer state: equal to the last bit."""
    runs = {}
    for name in ("calm", "killed"):
        folder = tmp_path / name
        config = tiny_run(
            folder,
            log,
            data={"rows_per_split": 1000, "eval_fraction": 0.1},
            train={**DETERMINISTIC, "epochs": 2},
            cluster={"trainers": 1, "shards": 2},
            dense={"optimizer": dense},
            embedding={"optimizer": embedding},
            checkpoint={"strategy": "full", "interval_s": 0.3},
            failure={"max_failures": 0},
        )
        if name == "killed":
            fault = Faults(folder, (0.2, lambda f=folder: saved_once(f)))  # type: ignore[misc]
            assert run(config, fault).state == "FAILED"
            fault.check(1)
        runs[name] = run(config)
        assert (runs[name].state, runs[name].error) == ("SUCCEEDED", None)
        assert_everything_committed(newest_save(folder), 2 * int(ROWS * 0.9))
    (resumed,) = events(tmp_path / "killed", "resumed")
    assert 0 < resumed["samples"] < 2 * int(ROWS * 0.9)
    assert runs["killed"].metrics == runs["calm"].metrics and runs["calm"].metrics is not None
    calm, killed = (checksums(newest_save(tmp_path / name)) for name in ("calm", "killed"))
    assert killed == calm and len(calm) >= 3
