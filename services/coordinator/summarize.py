"""From a run's totals to its summary."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from services.config import RunConfig
from services.coordinator.accounts import Accounts, Evaluation
from services.coordinator.work_queue import RowCounts
from services.summary import (
    BestMetrics,
    CheckpointSummary,
    Failure,
    Metrics,
    Phases,
    Pls,
    Precision,
    PredictionSummary,
    Samples,
    ShardUse,
    State,
    Summary,
    SyncSummary,
)

_ROOT = str(Path(__file__).resolve().parents[2])
_PACKAGES = ("penumbra-train", "torch", "torchrec", "fbgemm-gpu-cpu", "fbgemm-gpu", "ray", "numpy", "pyarrow")


def versions() -> dict[str, str]:
    """Versions of what the run stands on, and the git commit it ran from where there is one."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    with contextlib.suppress(OSError):  # no git on this machine
        describe = ["git", "-C", _ROOT, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        git = subprocess.run(describe, capture_output=True, text=True, check=False)
        if git.returncode == 0:
            found["git_commit"] = git.stdout.strip()
    return found


def summarize(
    config: RunConfig,
    state: State,
    error: str | None,
    *,
    counts: RowCounts,
    accounts: Accounts | None,
    shard_stats: Mapping[int, Mapping[str, int]] | None,
    started_s: float,
    ended_s: float,
    trainer_stats: Sequence[Mapping[str, Any]],
    failures: Sequence[Failure],
    predictions: PredictionSummary | None = None,
    checkpoint: CheckpointSummary | None = None,
    pls: Pls | None = None,
    started_samples: int = 0,
    rolled_back_samples: int = 0,
    lost_samples: int = 0,
) -> Summary:
    """Build the summary; parts that never came to be stay null.

    Args:
        counts: rows by outcome.
        accounts: quality and speed; ``None`` when the run ended before any.
        shard_stats: counters and memory of every shard by id, ``None`` when the shards could not be asked. Samples
            whose push they applied beyond ``counts.trained`` were trained twice.
        trainer_stats: last counters of every incarnation of every trainer.
        predictions: of the files in ``data.predict``; ``None`` without any.
        checkpoint: saves taken; ``None`` without any.
        pls: the quality budget.
        started_samples: trained before this process of the run began.
        rolled_back_samples: trained, and set back by full recoveries.
        lost_samples: PLS spent, in samples.
    """
    phases: dict[str, float] = {}
    for stats in trainer_stats:
        for phase, seconds in stats.get("phases", {}).items():
            phases[phase] = phases.get(phase, 0.0) + seconds
    applied = None if shard_stats is None else max((s.get("samples", 0) for s in shard_stats.values()), default=0)
    steps = sum(stats.get("steps", 0) for stats in trainer_stats)
    syncs = sum(stats.get("syncs", 0) for stats in trainer_stats)
    return Summary(
        run=config.name,
        state=state,
        error=error,
        samples=Samples(
            trained=counts.trained,
            repeated=None
            if applied is None
            else max(rolled_back_samples, applied - (counts.trained - started_samples)),
            lost=lost_samples,
            skipped=counts.skipped,
            rejected_lines=len(accounts.bad_lines) if accounts else 0,
        ),
        wall_s=ended_s - started_s,
        startup_s=accounts.first_step_s - started_s if accounts and accounts.first_step_s else None,
        throughput_samples_per_s=accounts.throughput if accounts else None,
        phases_s=Phases(**phases) if phases else None,
        metrics=_metrics(accounts) if accounts else None,
        best=_best(accounts.best) if accounts and accounts.best else None,
        sync=SyncSummary(
            mode=config.sync.mode if config.synchronized else "none",
            algorithm=config.sync.algorithm if config.synchronized else None,
            syncs=syncs,
            avg_gap=steps / syncs if syncs else None,
            elp=config.train.batch_size * config.train.hogwild_threads * config.cluster.trainers,
            worker_stall_s=sum(stats.get("sync_stall_s", 0.0) for stats in trainer_stats),
        ),
        shards=_shards(shard_stats) if shard_stats else None,
        failures=tuple(failures),
        predictions=predictions,
        checkpoint=checkpoint,
        pls=pls,
        precision=Precision(recipe=config.train.precision),
        versions=versions(),
    )


def _metrics(accounts: Accounts) -> Metrics | None:
    progressive = accounts.first_pass.logloss
    if not accounts.evaluations:
        return None if progressive is None else Metrics(progressive_logloss=progressive)
    return Metrics(**accounts.evaluations[-1].metrics.summary(), progressive_logloss=progressive)


def _shards(shard_stats: Mapping[int, Mapping[str, int]]) -> tuple[ShardUse, ...] | None:
    """Shards that have rows; ``None`` when none has."""
    return tuple(ShardUse(shard_id=i, **stats) for i, stats in sorted(shard_stats.items()) if stats) or None


def _best(best: Evaluation) -> BestMetrics:
    return BestMetrics(**best.metrics.summary(), at_samples=best.at_samples)
