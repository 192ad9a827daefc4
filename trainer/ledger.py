"""What a trainer's threads did since the last report: rows by outcome, loss, predictions."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.data.batch import Batch, RowSpan
from trainer.metrics import ProgressiveLoss
from trainer.predictions import Scored, score

FloatArray = npt.NDArray[np.float32]


class Commit(NamedTuple):
    """Input rows ``[start, end)`` of a lease are done: ``rows`` of them used (or ``skipped`` as a bad batch)."""

    lease_id: int
    start: int
    end: int
    rows: int
    skipped: bool

    @classmethod
    def of(cls, span: RowSpan, skipped: bool = False) -> Commit:
        """Commit of a whole span."""
        return cls(span.lease_id, span.start, span.end, span.rows, skipped)


class BadBatch(NamedTuple):
    """A batch that was skipped because its loss or a gradient was not finite."""

    spans: tuple[RowSpan, ...]
    loss: float


@dataclass(slots=True)
class Report:
    """One report to the coordinator; empty ones are worth nothing."""

    commits: list[Commit] = field(default_factory=list)
    bad_batches: list[BadBatch] = field(default_factory=list)
    predictions: list[tuple[FloatArray, FloatArray]] = field(default_factory=list)
    scored: list[Scored] = field(default_factory=list)
    loss: ProgressiveLoss = field(default_factory=ProgressiveLoss)
    first_pass: ProgressiveLoss = field(default_factory=ProgressiveLoss)
    """The part of ``loss`` on rows that no trainer had been given before: predicted before they are trained on."""

    def __bool__(self) -> bool:
        return bool(self.commits or self.bad_batches or self.predictions)


class Ledger:
    """Collects from several worker threads; the reporter takes everything at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._report = Report()
        self._started_samples = 0

    def start(self, samples: int) -> int:
        """A thread begins a step of ``samples``; returns how many samples this trainer had begun before."""
        with self._lock:
            before = self._started_samples
            self._started_samples += samples
            return before

    def trained(self, batch: Batch, loss: float, positives: int, first_pass: bool) -> None:
        """Every shard has acknowledged the batch's push: its rows are committed with the next report."""
        with self._lock:
            self._report.commits.extend(Commit.of(span) for span in batch.spans)
            if batch.size:
                self._report.loss.add(loss * batch.size, batch.size, positives)
                if first_pass:
                    self._report.first_pass.add(loss * batch.size, batch.size, positives)

    def skipped(self, batch: Batch, loss: float) -> None:
        """The batch was not applied; its rows are accounted as skipped."""
        with self._lock:
            self._report.commits.extend(Commit.of(span, skipped=True) for span in batch.spans)
            self._report.bad_batches.append(BadBatch(batch.spans, loss))

    def evaluated(self, batch: Batch, logits: FloatArray, labels: FloatArray) -> None:
        """B logits of a batch that is not trained on: of an evaluation, or to be written for the person."""
        scored = score(batch, logits) if batch.purpose == "predict" else []
        with self._lock:
            self._report.commits.extend(Commit.of(span) for span in batch.spans)
            if batch.purpose == "predict":
                self._report.scored.extend(scored)
            else:
                self._report.predictions.append((logits, labels))

    @property
    def started_samples(self) -> int:
        """Samples whose training step this trainer has begun."""
        return self._started_samples

    def take(self) -> Report:
        """Everything since the last call."""
        with self._lock:
            report, self._report = self._report, Report()
            return report

    def __bool__(self) -> bool:
        return bool(self._report)
