"""The ledger of a trainer's threads: nothing lost, nothing twice, order kept."""

from __future__ import annotations

import math
import threading

import numpy as np
import torch

from trainer.data.batch import Batch, RowSpan
from trainer.ledger import Commit, Ledger


def batch(*spans: tuple[int, int, int, int], purpose: str = "train") -> Batch:
    rows = tuple(RowSpan(*span) for span in spans)
    size = sum(span.rows for span in rows)
    empty = torch.zeros(0, dtype=torch.int64)
    return Batch(torch.zeros(size, 2), torch.zeros(size), empty, None, rows, purpose)


def test_every_outcome_is_committed_with_its_rows() -> None:
    ledger = Ledger()
    ledger.trained(batch((1, 0, 5, 4), (2, 0, 2, 2)), 0.5, 3, first_pass=True)
    ledger.skipped(batch((2, 2, 4, 2)), math.nan)
    logits, labels = np.zeros(3, np.float32), np.ones(3, np.float32)
    ledger.evaluated(batch((3, 0, 3, 3), purpose="eval"), logits, labels)
    ledger.trained(batch((4, 0, 2, 0)), 0.0, 0, first_pass=False)  # rejected rows alone
    report = ledger.take()
    assert report.commits == [
        Commit(1, 0, 5, 4, False),
        Commit(2, 0, 2, 2, False),
        Commit(2, 2, 4, 2, True),
        Commit(3, 0, 3, 3, False),
        Commit(4, 0, 2, 0, False),
    ]
    assert (report.loss.samples, report.loss.loss_sum, report.loss.positives) == (6, 3.0, 3)
    assert [bad.spans for bad in report.bad_batches] == [(RowSpan(2, 2, 4, 2),)]
    assert report.predictions == [(logits, labels)]
    assert report and not ledger.take()


def test_predictions_keep_the_rows_of_their_spans() -> None:
    ledger = Ledger()
    one = batch((7, 10, 13, 2), (8, 0, 1, 1), purpose="predict")
    one.rows = torch.tensor([10, 12, 0])  # row 11 was rejected
    ledger.evaluated(one, np.array([0.0, 40.0, -1000.0], np.float32), np.zeros(3, np.float32))
    report = ledger.take()
    assert report.commits == [Commit(7, 10, 13, 2, False), Commit(8, 0, 1, 1, False)] and report.predictions == []
    assert [(part.lease_id, part.start, part.rows.tolist()) for part in report.scored] == [
        (7, 10, [10, 12]),
        (8, 0, [0]),
    ]
    assert [part.probabilities.tolist() for part in report.scored] == [[0.5, 1.0], [0.0]]
    assert all(part.probabilities.dtype == np.float32 for part in report.scored)


def test_loss_of_rows_seen_before_stays_out_of_the_first_pass() -> None:
    ledger = Ledger()
    ledger.trained(batch((1, 0, 2, 2)), 1.0, 1, first_pass=True)
    ledger.trained(batch((2, 0, 4, 4)), 3.0, 2, first_pass=False)
    report = ledger.take()
    assert (report.loss.samples, report.loss.loss_sum, report.loss.positives) == (6, 14.0, 3)
    assert (report.first_pass.samples, report.first_pass.loss_sum, report.first_pass.positives) == (2, 2.0, 1)


def test_many_threads_lose_nothing() -> None:
    ledger = Ledger()
    befores: list[int] = []

    def work(lease: int) -> None:
        for row in range(200):
            befores.append(ledger.start(1))
            ledger.trained(batch((lease, row, row + 1, 1)), 1.0, 0, first_pass=True)

    threads = [threading.Thread(target=work, args=(lease,)) for lease in range(4)]
    for thread in threads:
        thread.start()
    delivered: list[Commit] = []
    samples = 0
    while True:
        alive = any(thread.is_alive() for thread in threads)
        report = ledger.take()
        delivered += report.commits
        samples += report.loss.samples
        if not alive:
            break
    assert samples == 800 and ledger.started_samples == 800
    assert sorted(befores) == list(range(800)), "every step knows what was begun before it"
    for lease in range(4):
        assert [commit.start for commit in delivered if commit.lease_id == lease] == list(range(200))
