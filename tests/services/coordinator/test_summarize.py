"""From totals to the summary: sums, nulls, and the file."""

from __future__ import annotations

import json

import numpy as np
import pytest

from services.config import RunConfig
from services.coordinator.accounts import Accounts
from services.coordinator.summarize import summarize
from services.coordinator.work_queue import RowCounts
from services.summary import Failure, State, Summary
from trainer.data.block import RejectedLine
from trainer.ledger import Report
from trainer.metrics import ProgressiveLoss

SHARD = {"samples": 200, "pushes": 2, "rows_bytes": 640, "optimizer_bytes": 40, "peak_rss_bytes": 5000}


def build(accounts: Accounts | None, state: State = "SUCCEEDED", **changes: object) -> Summary:
    arguments: dict[str, object] = {
        "counts": RowCounts(),
        "accounts": accounts,
        "shard_stats": {},
        "started_s": 10.0,
        "ended_s": 25.0,
        "trainer_stats": [],
        "failures": [],
        **changes,
    }
    config = RunConfig.model_validate({"name": "r", "cluster": {"trainers": 2}, "train": {"hogwild_threads": 3}})
    return summarize(config, state, None if state == "SUCCEEDED" else "why", **arguments)  # type: ignore[arg-type]


def test_a_run_that_never_trained_has_nulls() -> None:
    summary = build(None, "FAILED")
    assert (summary.state, summary.error, summary.wall_s, summary.startup_s) == ("FAILED", "why", 15.0, None)
    assert (summary.metrics, summary.best, summary.phases_s, summary.checkpoint, summary.pls, summary.shards) == (
        None,
    ) * 6
    assert summary.throughput_samples_per_s is None
    assert json.loads(summary.to_json())["metrics"] is None


def test_totals_are_summed_over_all_incarnations() -> None:
    accounts = Accounts(5, 5)
    first = ProgressiveLoss(50.0, 100, 20)
    accounts.report(Report(loss=ProgressiveLoss(50.0, 100, 20), first_pass=first), 12.0)
    accounts.report(Report(loss=ProgressiveLoss(50.0, 100, 20)), 14.0)
    accounts.stage_ended("train")
    accounts.report(Report(predictions=[(np.array([0.0, 1.0], np.float32), np.array([0, 1], np.float32))]), 15.0)
    predictions = accounts.stage_ended("eval")
    assert predictions is not None
    accounts.evaluated(200, predictions.compute())
    accounts.reject([RejectedLine("a", 1, "I1", "x", "y")])
    stats = [
        {"phases": {"input": 1.0, "dense": 2.0}, "steps": 30, "syncs": 5, "sync_stall_s": 0.5},
        {"phases": {"dense": 3.0}, "steps": 10, "syncs": 5, "sync_stall_s": 0.25},
        {},
    ]
    failure = Failure(role="trainer", index=1, cause="its process died", at_samples=100)
    summary = build(
        accounts,
        counts=RowCounts(trained=200, skipped=8, rejected=2, evaluated=2),
        shard_stats={1: SHARD | {"samples": 208}, 0: SHARD, 2: {}},
        trainer_stats=stats,
        failures=[failure],
    )
    assert summary.samples.model_dump() == {
        "trained": 200, "lost": 0, "repeated": 8, "skipped": 8, "rejected_lines": 1
    }  # fmt: skip
    assert summary.shards is not None and [use.shard_id for use in summary.shards] == [0, 1]
    assert (summary.shards[0].rows_bytes, summary.shards[0].peak_rss_bytes) == (640, 5000)
    assert summary.startup_s == 2.0 and summary.throughput_samples_per_s == 50.0
    assert summary.phases_s is not None and (summary.phases_s.input, summary.phases_s.dense) == (1.0, 5.0)
    assert summary.sync is not None
    assert (summary.sync.syncs, summary.sync.avg_gap, summary.sync.worker_stall_s) == (10, 4.0, 0.75)
    assert summary.sync.elp == 2 * 3 * 2048
    assert summary.metrics is not None and summary.metrics.progressive_logloss == pytest.approx(0.5)
    assert (summary.metrics.auc, summary.metrics.eval_samples) == (1.0, 2)
    assert summary.best is not None and (summary.best.auc, summary.best.at_samples) == (1.0, 200)
    assert summary.failures == (failure,)
    assert summary.versions["torch"].startswith("2.") and "ray" in summary.versions


def test_trained_but_never_evaluated_has_the_progressive_loss_only() -> None:
    accounts = Accounts(0, 0)
    loss = ProgressiveLoss(30.0, 100, 20)
    accounts.report(Report(loss=loss, first_pass=loss), 12.0)
    summary = build(accounts, "CANCELLED", counts=RowCounts(trained=100), shard_stats={0: {**SHARD, "samples": 90}})
    assert summary.metrics is not None and summary.metrics.auc is None
    assert summary.metrics.progressive_logloss == pytest.approx(0.3)
    assert summary.best is None and summary.samples.repeated == 0


def test_without_git_the_versions_are_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    versions = build(None).versions
    assert "git_commit" not in versions and "torch" in versions
