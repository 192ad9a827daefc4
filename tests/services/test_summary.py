from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from services.summary import (
    BestMetrics,
    CheckpointSummary,
    Failure,
    Metrics,
    Phases,
    Pls,
    Precision,
    Samples,
    Summary,
    SyncSummary,
)

QUALITY = {"auc", "ne", "logloss", "accuracy", "calibration", "eval_samples"}
CONTRACT: dict[str, set[str] | None] = {
    "schema": None,
    "run": None,
    "state": None,
    "error": None,
    "samples": {"trained", "lost", "repeated", "skipped", "rejected_lines"},
    "wall_s": None,
    "startup_s": None,
    "throughput_samples_per_s": None,
    "phases_s": {"input", "lookup_wait", "dense", "push", "sync_stall", "other"},
    "metrics": QUALITY,
    "best": QUALITY | {"at_samples"},
    "sync": {"mode", "algorithm", "syncs", "avg_gap", "elp", "worker_stall_s"},
    "checkpoint": {
        *("strategy", "interval_s", "full_saves", "priority_saves", "delta_saves", "bytes", "stall_s", "write_s"),
    },
    "pls": {"budget", "spent", "effective"},
    "precision": {"recipe", "fp8_tensor_fraction", "zero_flip_fraction"},
    "versions": None,
}
FAILURE = {"role", "index", "cause", "at_samples", "mode", "detect_s", "reschedule_s", "load_s", "replay_s", "pls"}


def _full() -> Summary:
    return Summary(
        run="r",
        state="FAILED",
        error="shard 1 died",
        samples=Samples(trained=100, lost=1, repeated=2, skipped=3, rejected_lines=4),
        wall_s=10.5,
        startup_s=1.5,
        throughput_samples_per_s=50_000.0,
        phases_s=Phases(input=1, lookup_wait=2, dense=3, push=4, sync_stall=5, other=6),
        metrics=Metrics(auc=0.75, ne=0.8, logloss=0.49, accuracy=0.78, calibration=1.01, eval_samples=9),
        best=BestMetrics(auc=0.76, eval_samples=9, at_samples=50),
        sync=SyncSummary(mode="foreground", algorithm="easgd", syncs=7, avg_gap=4.0, elp=512, worker_stall_s=0.25),
        checkpoint=CheckpointSummary(strategy="full", interval_s=60.0),
        failures=(Failure(role="shard", index=1, cause="SIGKILL", at_samples=77),),
        pls=Pls(budget=0.1, spent=0.02),
        precision=Precision(recipe="bf16"),
        versions={"penumbra": "0.1.0"},
    )


def test_every_field_of_the_contract_is_there(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    _full().write(path)
    written = json.loads(path.read_text())
    for name, parts in CONTRACT.items():
        assert name in written
        if parts:
            assert parts <= written[name].keys(), name
    assert written["failures"][0].keys() >= FAILURE
    assert written["schema"] == 1
    assert Summary.read(path) == _full()


def test_absent_parts_are_null(tmp_path: Path) -> None:
    written = json.loads(Summary(run="r", state="CANCELLED").to_json())
    for name in ("error", "phases_s", "metrics", "best", "sync", "checkpoint", "predictions", "pls", "precision"):
        assert written[name] is None
    assert written["failures"] == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_say_becomes_null(value: float) -> None:
    text = Summary(run="r", state="SUCCEEDED", metrics=Metrics(auc=value, eval_samples=3)).to_json()
    assert json.loads(text)["metrics"]["auc"] is None


def test_additions_of_a_later_version_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    written = json.loads(_full().to_json()) | {"novelty": {"a": 1}}
    path.write_text(json.dumps(written))
    assert Summary.read(path) == _full()


def test_writing_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_text("old")
    before = path.stat().st_ino
    Summary(run="new", state="SUCCEEDED").write(path)
    assert path.stat().st_ino != before  # renamed over, never opened for writing
    assert os.listdir(tmp_path) == ["summary.json"]


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "summary.json"
    target.mkdir()  # a directory cannot be replaced by a file
    with pytest.raises(OSError, match=r"summary\.json"):
        Summary(run="r", state="SUCCEEDED").write(target)
    assert os.listdir(tmp_path) == ["summary.json"]


def test_reading_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    with pytest.raises(FileNotFoundError, match="does not exist: the run has not finished"):
        Summary.read(path)
    path.write_text("{")
    with pytest.raises(ValueError, match="not a summary of schema 1"):
        Summary.read(path)
    path.write_text(json.dumps({"schema": 2, "run": "r", "state": "FAILED"}))
    with pytest.raises(ValueError, match="not a summary of schema 1: schema"):
        Summary.read(path)


def test_states_are_the_three_of_the_contract() -> None:
    with pytest.raises(ValidationError, match="state"):
        Summary.model_validate({"run": "r", "state": "DONE"})
