"""The books of a run: numbered reports, errors that end it, evaluations that hold nobody up."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from services.coordinator.accounts import Accounts, TooManyBadError
from services.coordinator.books import Books
from services.coordinator.books_state import BooksState
from services.coordinator.run_files import RunFiles
from services.coordinator.work_queue import AccountingError, WorkQueue
from services.identity import Address
from trainer.data.block import RejectedLine
from trainer.data.split import Lease, Split
from trainer.ledger import Commit, Report
from trainer.metrics import EvalAccumulator, EvalMetrics, ProgressiveLoss

TRAINER = Address("trainer", 0, 1)


def books(tmp_path: Path, *, known: bool = True, evaluation: bool = False, state: BooksState | None = None) -> Books:
    train, held_out = [Split("a.tsv", 0, 10)], [Split("a.tsv", 10, 12)] if evaluation else []
    queue = WorkQueue(train, held_out, 1, None)
    if state is not None:
        queue.go_to(state.position)
    return Books(queue, Accounts(0, 0), RunFiles(str(tmp_path)), lambda address: known)


def commit(lease: object, start: int, end: int) -> Report:
    assert isinstance(lease, Lease)
    rows = end - start
    return Report([Commit(lease.lease_id, start, end, rows, False)], loss=ProgressiveLoss(rows * 0.5, rows, 1))


def test_a_report_that_is_sent_again_counts_once(tmp_path: Path) -> None:
    kept = books(tmp_path)
    lease = kept.lease(TRAINER)
    kept.report(TRAINER, 1, commit(lease, 0, 4), [])
    kept.report(TRAINER, 1, commit(lease, 0, 4), [])
    assert kept.fatal is None and kept.counts.trained == 4
    kept.report(TRAINER, 2, commit(lease, 4, 10), [])
    assert kept.counts.trained == 10 and kept.done and kept.lease(TRAINER) == "done"


def test_what_does_not_fit_ends_the_run_instead_of_getting_lost(tmp_path: Path) -> None:
    kept = books(tmp_path)
    lease = kept.lease(TRAINER)
    kept.report(TRAINER, 1, commit(lease, 0, 4), [])
    kept.report(TRAINER, 2, commit(lease, 0, 4), [])
    assert isinstance(kept.fatal, AccountingError) and kept.lease(TRAINER) == "done"


def test_too_many_bad_lines_end_the_run(tmp_path: Path) -> None:
    kept = books(tmp_path)
    kept.report(TRAINER, 1, Report(), [RejectedLine("a.tsv", 3, "I1", "'x'", "an integer")])
    assert isinstance(kept.fatal, TooManyBadError)
    assert json.loads((tmp_path / "rejected.jsonl").read_text())["line"] == 3


def test_a_replaced_trainer_neither_leases_nor_commits(tmp_path: Path) -> None:
    kept = books(tmp_path, known=False)
    assert kept.lease(TRAINER) == "done"
    kept.report(TRAINER, 1, Report([Commit(0, 0, 4, 4, False)]), [])
    assert kept.fatal is None and kept.counts.trained == 0


def test_reports_counted_after_a_restart_are_kept_until_they_are_recorded(tmp_path: Path) -> None:
    """Else a coordinator that dies twice in a moment would miss one that its trainer no longer has."""
    first = books(tmp_path)
    lease = first.lease(TRAINER)
    first.report(TRAINER, 1, commit(lease, 0, 4), [])
    record = first.record()
    restarted = books(tmp_path, state=record.books)
    restarted.recall(record)
    assert restarted.report(TRAINER, 2, commit(lease, 4, 6), [])[1:] == (2, 1)
    restarted.durable(restarted.record())
    assert restarted.report(TRAINER, 2, commit(lease, 4, 6), [])[1:] == (2, 2)
    assert restarted.fatal is None and restarted.counts.trained == 6


def test_rows_queued_again_are_marked(tmp_path: Path) -> None:
    kept = books(tmp_path)
    first = kept.lease(TRAINER)
    kept.report(TRAINER, 1, commit(first, 0, 4), [])
    assert kept.requeue(0) == 6
    again = kept.lease(Address("trainer", 0, 2))
    assert isinstance(first, Lease) and not first.requeued
    assert isinstance(again, Lease) and again.requeued and again.ranges == ((4, 10),)


def test_an_evaluation_is_computed_without_holding_anybody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = books(tmp_path, evaluation=True)
    kept.report(TRAINER, 1, commit(kept.lease(TRAINER), 0, 10), [])
    release, compute = threading.Event(), EvalAccumulator.compute

    def slow(self: EvalAccumulator) -> EvalMetrics:
        assert release.wait(20)
        return compute(self)

    monkeypatch.setattr(EvalAccumulator, "compute", slow)
    lease = kept.lease(TRAINER)
    report = commit(lease, 10, 12)
    report.predictions.append((np.array([1.0, -1.0], np.float32), np.array([1.0, 0.0], np.float32)))
    kept.report(TRAINER, 2, report, [])
    assert kept.done and kept.lease(TRAINER) == "done" and kept.accounts.evaluations == []
    release.set()
    kept.settle()
    assert [evaluation.metrics.auc for evaluation in kept.accounts.evaluations] == [1.0]
    assert kept.take_messages() == ["evaluated 2 rows: AUC 1.0000"] and kept.take_messages() == []
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["at_samples"] == 10
