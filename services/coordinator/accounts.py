"""Running totals of a run: quality, speed, row outcomes. Pure but for the clock readings it is given."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from services.coordinator.books_state import AccountsState
from trainer.data.block import RejectedLine
from trainer.data.rejections import list_first
from trainer.ledger import BadBatch, Report
from trainer.metrics import EvalAccumulator, EvalMetrics, ProgressiveLoss

_RECENT_S = 5.0
_LISTED = 10


class TooManyBadError(RuntimeError):
    """More bad lines or bad batches than the run allows."""


@dataclass(slots=True)
class _Window:
    """Training time of one stage: from its first report with rows to its last."""

    first_s: float
    last_s: float
    samples: int = 0


@dataclass(slots=True)
class Evaluation:
    """One finished evaluation round."""

    at_samples: int
    metrics: EvalMetrics


@dataclass(slots=True)
class Accounts:
    """What the summary and the live display are made from.

    ``max_bad_lines`` is a number of lines (the configured share of the run's rows), ``max_bad_batches`` one of batches.
    """

    max_bad_lines: int
    max_bad_batches: int
    first_pass: ProgressiveLoss = field(default_factory=ProgressiveLoss)
    evaluations: list[Evaluation] = field(default_factory=list)
    bad_batches: list[str] = field(default_factory=list)
    bad_lines: dict[tuple[str, int], RejectedLine] = field(default_factory=dict)
    first_step_s: float | None = None
    _eval: EvalAccumulator = field(default_factory=EvalAccumulator)
    _windows: list[_Window] = field(default_factory=list)
    _window: _Window | None = None
    _recent: deque[tuple[float, int, ProgressiveLoss]] = field(default_factory=deque)

    def report(self, report: Report, now_s: float) -> None:
        """Add a trainer's report received at ``now_s``."""
        samples = report.loss.samples
        if samples:
            self.first_pass.merge(report.first_pass)
            self._recent.append((now_s, samples, report.loss))
            if self.first_step_s is None:
                self.first_step_s = now_s
            if self._window is None:
                self._window = _Window(now_s, now_s)  # its rows were trained before the window opened
                self._windows.append(self._window)
            else:
                self._window.last_s = now_s
                self._window.samples += samples
        for logits, labels in report.predictions:
            self._eval.add(logits, labels)

    def bad_batch(self, batch: BadBatch, where: str) -> None:
        """Note a skipped batch.

        Raises:
            TooManyBadError: over ``train.max_bad_batches``.
        """
        self.bad_batches.append(f"{where}: loss {batch.loss}")
        if len(self.bad_batches) > self.max_bad_batches:
            listed = "\n  ".join(self.bad_batches[:_LISTED])
            raise TooManyBadError(
                f"{len(self.bad_batches)} batches had a non-finite loss or gradient, train.max_bad_batches allows "
                f"{self.max_bad_batches}; the first:\n  {listed}"
            )

    def reject(self, lines: Sequence[RejectedLine]) -> list[RejectedLine]:
        """Note bad input lines; returns those not seen before (a later epoch meets the same ones again)."""
        fresh = [line for line in lines if (line.path, line.line) not in self.bad_lines]
        self.bad_lines.update({(line.path, line.line): line for line in fresh})
        return fresh

    def check_lines(self) -> None:
        """Raise ``TooManyBadError`` when there are more bad lines than allowed."""
        if len(self.bad_lines) > self.max_bad_lines:
            raise TooManyBadError(
                f"{len(self.bad_lines)} input lines were rejected, data.max_bad_lines allows {self.max_bad_lines} of "
                f"this run's rows; the first:{list_first(self.bad_lines.values())}"
            )

    def stage_ended(self, purpose: str) -> EvalAccumulator | None:
        """A stage of work is complete; an evaluation stage yields the predictions to compute its metrics from."""
        self._window = None
        if purpose != "eval":
            return None
        predictions, self._eval = self._eval, EvalAccumulator()
        return predictions

    def state(self) -> AccountsState:
        """What a save keeps of them; an evaluation under way is not part of it."""
        loss = self.first_pass
        return AccountsState(
            first_pass=(loss.loss_sum, loss.samples, loss.positives),
            evaluations=tuple((one.at_samples, asdict(one.metrics)) for one in self.evaluations),
            bad_batches=tuple(self.bad_batches),
            bad_lines=tuple(self.bad_lines.values()),
        )

    def go_to(self, state: AccountsState) -> None:
        """Continue from a saved state."""
        self.first_pass = ProgressiveLoss(*state.first_pass)
        self.evaluations = [Evaluation(samples, EvalMetrics(**metrics)) for samples, metrics in state.evaluations]
        self.bad_batches = list(state.bad_batches)
        self.bad_lines = {(line.path, line.line): line for line in state.bad_lines}

    def evaluated(self, at_samples: int, metrics: EvalMetrics) -> None:
        """Note the metrics of an evaluation round."""
        self.evaluations.append(Evaluation(at_samples, metrics))

    @property
    def throughput(self) -> float | None:
        """Steady state, samples/s: start-up, drains and evaluations excluded; ``None`` when too short to measure."""
        seconds = sum(window.last_s - window.first_s for window in self._windows)
        return sum(window.samples for window in self._windows) / seconds if seconds > 0 else None

    def recent(self, now_s: float) -> tuple[float, ProgressiveLoss]:
        """Samples/s and training loss of the last seconds."""
        while self._recent and now_s - self._recent[0][0] > _RECENT_S:
            self._recent.popleft()
        loss = ProgressiveLoss()
        for _, _, part in self._recent:
            loss.merge(part)
        if len(self._recent) < 2:
            return 0.0, loss
        span = max(1e-9, now_s - self._recent[0][0])
        return sum(samples for _, samples, _ in list(self._recent)[1:]) / span, loss

    @property
    def best(self) -> Evaluation | None:
        """The evaluation with the highest AUC."""
        rated = [evaluation for evaluation in self.evaluations if evaluation.metrics.auc is not None]
        return max(rated, key=lambda evaluation: evaluation.metrics.auc or 0.0, default=None)
