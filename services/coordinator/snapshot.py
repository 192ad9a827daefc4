"""A snapshot of a run for the live display."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from services.coordinator.books import Books
from services.placement_report import PlacementReport
from services.progress import Progress


def snapshot(
    books: Books | None,
    state: Literal["STARTING", "RUNNING", "STOPPING"],
    stage: str,
    total_samples: int,
    trainer_stats: Iterable[Mapping[str, Any]],
    alive: Sequence[int],
    messages: Sequence[str],
    placement: PlacementReport | None,
) -> Progress:
    """``alive``: trainers, shards. ``trainer_stats``: last counters of every incarnation."""
    accounts = books.accounts if books else None
    speed, loss = books.recent() if books else (0.0, None)
    phases: dict[str, float] = {}
    for stats in trainer_stats:
        for phase, seconds in stats.get("phases", {}).items():
            phases[phase] = phases.get(phase, 0.0) + seconds
    busy = sum(phases.values())
    last = accounts.evaluations[-1].metrics if accounts and accounts.evaluations else None
    predictions = books.predictions if books else None
    return Progress(
        state=state,
        stage=stage,
        samples=books.counts.trained if books else 0,
        total_samples=total_samples,
        predicted_rows=predictions.rows_done if predictions else 0,
        total_predicted_rows=predictions.total_rows if predictions else 0,
        throughput_samples_per_s=predictions.rows_per_s if predictions and predictions.rows_done else speed,
        loss=loss.logloss if loss else None,
        ne=loss.ne if loss else None,
        auc=last.auc if last else None,
        phases={phase: seconds / busy for phase, seconds in phases.items()} if busy else {},
        trainers=alive[0],
        shards=alive[1],
        messages=(*messages, *(books.take_messages() if books else ())),
        placement=placement,
    )


def described_stage(stage: str, books: Books | None, epochs: int, total_samples: int) -> str:
    """What the run does, with the epoch when there are several."""
    stage = books.stage if books and stage != "finishing" else stage
    if books is None or epochs == 1 or stage != "training":
        return stage
    epoch = min(epochs, 1 + books.counts.trained * epochs // max(1, total_samples))
    return f"training, epoch {epoch}/{epochs}"
