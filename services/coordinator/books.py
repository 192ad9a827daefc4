"""A run's bookkeeping while trainers report: work queue, quality, bad input. Called from many threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

from services.coordinator.accounts import Accounts
from services.coordinator.books_state import BooksState
from services.coordinator.predictions import Predictions
from services.coordinator.run_files import RunFiles
from services.coordinator.work_queue import RowCounts, WorkQueue
from services.identity import Address
from services.state.work_records import ReportPart, SplitsRecord
from trainer.data.block import RejectedLine
from trainer.data.split import Lease
from trainer.ledger import Report
from trainer.metrics import EvalAccumulator, ProgressiveLoss


class Receipt(NamedTuple):
    """The answer to a report.

    Attributes:
        others_samples: committed by the other trainers.
        counted: number up to which this trainer's reports are counted; it sends the next one.
        durable: number up to which they would be after a restart; it keeps younger ones.
    """

    others_samples: int
    counted: int
    durable: int


NOT_COUNTED = Receipt(0, -1, -1)
"""There are no books now: it is to be sent again."""


class Books:
    """Queue and accounts behind one lock of their own: nothing slow happens under it, so no heartbeat ever waits.

    Reports are numbered by each trainer incarnation: one that is sent again (its answer was late) counts once.
    """

    def __init__(
        self,
        queue: WorkQueue,
        accounts: Accounts,
        files: RunFiles,
        known: Callable[[Address], bool],
        predictions: Predictions | None = None,
    ) -> None:
        """``known`` tells whether an address is the current incarnation; what others send does not count."""
        self._queue, self._accounts, self._files, self._known = queue, accounts, files, known
        self._lock = threading.Lock()
        self.predictions = predictions
        self._last_report: dict[Address, int] = {}
        self._durable: dict[Address, int] | None = None  # nobody keeps records
        self._messages: list[str] = []
        self._evaluator = ThreadPoolExecutor(
            1, thread_name_prefix="evaluate"
        )  # sorting millions of scores takes seconds
        self._evaluations: list[Future[None]] = []
        self.fatal: BaseException | None = None

    def lease(self, trainer: Address) -> Lease | Literal["wait", "done"]:
        """The next split for a trainer."""
        with self._lock:
            if not self._known(trainer) or self.fatal is not None:
                return "done"
            if self.predictions is not None and self.predictions.behind:
                return "wait"
            return self._queue.lease(trainer.index)

    def report(self, trainer: Address, number: int, report: Report, rejected: list[RejectedLine]) -> Receipt:
        """Account a trainer's report, if it is the next one.

        Whatever goes wrong ends the run (``fatal``): a report that is half accounted must not be lost silently.
        """
        with self._lock:
            if not self._known(trainer):  # a replaced trainer's rows were queued again: its report must not count
                return Receipt(0, number, number)
            if self.fatal is not None:  # more would only add to the list of what is wrong
                return Receipt(0, number, number)
            last = self._last_report.get(trainer, 0)
            if number == last + 1:
                self._last_report[trainer] = last = number
                try:
                    self._account(trainer, report, rejected)
                except Exception as error:
                    self.fatal = error
            durable = last if self._durable is None else self._durable.get(trainer, 0)
            return Receipt(self._queue.trained_by_others(trainer.index), last, durable)

    def record(self) -> SplitsRecord:
        """All that a coordinator needs to go on with these books after a restart."""
        with self._lock:
            leases, next_lease_id, trained_by = self._queue.leases()
            return SplitsRecord(
                books=BooksState(position=self._queue.position(), accounts=self._accounts.state()),
                leases=leases,
                next_lease_id=next_lease_id,
                reports=tuple(
                    ReportPart(trainer_id=address.index, generation=address.generation, number=number)
                    for address, number in self._last_report.items()
                    if self._known(address)
                ),
                trained_by=trained_by,
            )

    def recall(self, record: SplitsRecord) -> None:
        """Go on from ``record``; the position is that of the queue already."""
        with self._lock:
            self._queue.reopen(record.leases, record.next_lease_id, record.trained_by)
            self._last_report = {
                Address("trainer", part.trainer_id, part.generation): part.number for part in record.reports
            }
            self._durable = dict(self._last_report)  # what follows is not in the store yet

    def durable(self, record: SplitsRecord) -> None:
        """``record`` is in the state store: trainers need not keep the reports it counts."""
        with self._lock:
            self._durable = {
                Address("trainer", part.trainer_id, part.generation): part.number for part in record.reports
            }

    def state(self) -> BooksState:
        """Which rows are committed, and what they came to."""
        with self._lock:
            return BooksState(position=self._queue.position(), accounts=self._accounts.state())

    def requeue(self, trainer_id: int) -> int:
        """Queue a dead trainer's uncommitted rows again; returns how many."""
        with self._lock:
            return self._queue.requeue(trainer_id)

    def settle(self) -> None:
        """Wait for what is still being computed or written; raises what failed of it."""
        for evaluation in self._evaluations:
            evaluation.result()
        if self.predictions is not None:
            self.predictions.settle()

    def close(self) -> None:
        """Nothing will be reported any more."""
        if self.predictions is not None:
            self.predictions.close()

    def take_messages(self) -> list[str]:
        """What is worth telling the person since the last call."""
        with self._lock:
            messages, self._messages = self._messages, []
            return messages

    def recent(self) -> tuple[float, ProgressiveLoss]:
        """Samples/s and training loss of the last seconds."""
        with self._lock:
            return self._accounts.recent(time.monotonic())

    @property
    def counts(self) -> RowCounts:
        """Rows by outcome so far."""
        return self._queue.counts

    @property
    def accounts(self) -> Accounts:
        """Quality and speed so far."""
        return self._accounts

    @property
    def done(self) -> bool:
        """Every row of every stage is committed."""
        return self._queue.done

    @property
    def stage(self) -> str:
        """What is being worked on, for people."""
        stage = self._queue.stage
        if stage is None:
            return "finishing"
        if stage[0] == "eval":
            return f"evaluating, round {stage[1]}"
        return "training" if stage[0] == "train" else "predicting"

    def _account(self, trainer: Address, report: Report, rejected: list[RejectedLine]) -> None:
        queue, accounts = self._queue, self._accounts
        before, stages_done = queue.stage, queue.stages_done
        if queue.restarted:  # what was leased of an evaluation that begins again counts for nothing
            report = queue.without_unknown(report)
        splits = {commit.lease_id: queue.split_of(commit.lease_id) for commit in report.commits}
        queue.commit(trainer.index, report.commits)
        accounts.report(report, time.monotonic())
        lines: Accounts | Predictions = accounts
        if self.predictions is not None and before is not None and before[0] == "predict":
            lines = self.predictions
            self.predictions.add([(splits[commit.lease_id], commit) for commit in report.commits], report.scored)
            if self.predictions.error is not None:
                raise self.predictions.error
        if fresh := lines.reject(rejected):
            self._files.rejected(fresh)
            lines.check_lines()
        for bad in report.bad_batches:
            spans = _rows([(splits[span.lease_id].path, span.start, span.end) for span in bad.spans])
            self._files.event("bad_batch", where=spans, loss=str(bad.loss))  # JSON has no NaN
            accounts.bad_batch(bad, spans)
        if before is not None and queue.stages_done > stages_done:
            predictions = accounts.stage_ended(before[0])
            if predictions is not None:
                work = self._evaluator.submit(self._evaluate, predictions, queue.counts.trained)
                self._evaluations.append(work)
            self._files.event("stage", stage=self.stage)

    def _evaluate(self, predictions: EvalAccumulator, trained: int) -> None:
        metrics = predictions.compute()
        warning = metrics.warning()
        auc = "-" if metrics.auc is None else f"{metrics.auc:.4f}"
        with self._lock:
            self._accounts.evaluated(trained, metrics)
            self._messages.append(
                f"evaluated {metrics.samples:,} rows: AUC {auc}" + (f". {warning}" if warning else "")
            )
        figures: dict[str, Any] = dict(metrics.summary())
        self._files.metrics(at_samples=trained, **figures)
        if warning:
            self._files.event("warning", text=warning)


def _rows(spans: list[tuple[str, int, int]]) -> str:
    """Spans as text, those that follow each other in a file as one."""
    merged: list[tuple[str, int, int]] = []
    for path, start, end in spans:
        if merged and merged[-1][0] == path and merged[-1][2] == start:
            merged[-1] = (path, merged[-1][1], end)
        else:
            merged.append((path, start, end))
    return ", ".join(f"{path} rows {start}-{end - 1}" for path, start, end in merged)
