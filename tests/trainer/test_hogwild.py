"""The training loop over a small embedding service inside the process: order, staleness, accounting, the end."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from tests.trainer.hogwild_parts import (
    DENSE,
    DIM,
    FEATURES,
    MODEL,
    Client,
    Source,
    Tables,
    batches,
    rejected_rows,
    replica,
)
from trainer.data.batch import Batch
from trainer.dense_step import DenseReplica
from trainer.dlrm import build_dense
from trainer.hogwild import HogwildWorker
from trainer.ledger import Commit, Ledger
from trainer.pause import PauseGate

DENSE_RATE, EMBEDDING_RATE = 0.05, 0.1


def worker(
    dense: DenseReplica,
    client: Client,
    source: Source,
    ledger: Ledger,
    lookahead: int = 0,
    stop: Callable[[], bool] = lambda: False,
    rates: Callable[[int], tuple[float, float]] = lambda _: (DENSE_RATE, EMBEDDING_RATE),
) -> HogwildWorker:
    return HogwildWorker(
        dense,
        "fp32",
        client,
        source,
        None,
        ledger,
        rates,
        lambda: dense.weights,
        lambda batch: True,
        stop,
        lambda: 0.0,
        PauseGate(1),
        lookahead=lookahead,
        pooled_shape=(8, FEATURES, DIM),
        pooled_dtype=torch.float32,
    )


def spans_of(work: Sequence[Batch]) -> list[Commit]:
    return [Commit.of(span) for batch in work for span in batch.spans]


def looked_up(client: Client) -> list[Commit]:
    return spans_of([batch for batch, _ in client.lookups])


def test_without_lookahead_it_is_plain_sequential_training() -> None:
    work, tables, dense, ledger = batches(30), Tables(), replica(), Ledger()
    module = build_dense(MODEL, DENSE, FEATURES, 1)
    rows = tables.rows.clone().requires_grad_(True)
    optimizer = torch.optim.SGD(
        [{"params": module.parameters(), "lr": DENSE_RATE}, {"params": [rows], "lr": EMBEDDING_RATE}]
    )
    loss_sum = 0.0
    for batch in work:
        ids = batch.values.view(FEATURES, batch.size)
        pooled = torch.stack([rows[f][ids[f]] for f in range(FEATURES)], dim=1)
        loss = binary_cross_entropy_with_logits(module(batch.dense, pooled), batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += float(loss.detach()) * batch.size

    loop = worker(dense, Client(tables), Source(work), ledger)
    loop.run()
    report = ledger.take()
    assert loop.steps == 30 and report.commits == spans_of(work)
    assert (report.loss.samples, report.loss.loss_sum) == (240, pytest.approx(loss_sum, rel=1e-5))
    assert report.loss.positives == int(sum(float(batch.labels.sum()) for batch in work))
    torch.testing.assert_close(tables.rows, rows.detach(), rtol=1e-4, atol=1e-6)
    for view, parameter in zip(dense.layout.views(dense.weights), module.parameters(), strict=True):
        torch.testing.assert_close(view, parameter.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("lookahead", [0, 1, 2, 5])
def test_a_lookup_misses_exactly_the_last_lookahead_pushes_while_data_is_at_hand(lookahead: int) -> None:
    work, client = batches(20), Client(Tables())
    worker(replica(), client, Source(work), Ledger(), lookahead).run()
    assert looked_up(client) == spans_of(work)
    assert [seen for _, seen in client.lookups] == [max(0, number - lookahead) for number in range(20)]
    assert client.most_in_flight == lookahead + 1


@pytest.mark.parametrize("seed", range(20))
def test_with_a_slow_reader_and_bad_batches_the_staleness_bound_holds_and_rows_add_up(seed: int) -> None:
    rng = random.Random(seed)
    lookahead, work = rng.randint(0, 4), batches(25)
    for batch in work:
        if rng.random() < 0.15:
            batch.dense[0, 0] = torch.nan
        elif rng.random() < 0.2:
            batch.purpose = "eval"
    for position in range(0, 25, 6):
        work.insert(position, rejected_rows(1000 + position, 1001 + position))
    client, ledger = Client(Tables()), Ledger()
    worker(replica(), client, Source(work, hungry=lambda: rng.random() < 0.4), ledger, lookahead).run()
    report = ledger.take()
    trains = [batch for batch in work if batch.size and batch.purpose == "train"]
    good = [batch for batch in trains if not batch.dense.isnan().any()]
    assert spans_of(client.sent) == spans_of(good)
    earlier = 0
    for batch, seen in client.lookups:
        assert earlier - lookahead <= seen, "older than the bound"
        earlier += any(batch is one for one in good)
    bad = [Commit.of(span, skipped=True) for batch in trains if batch.dense.isnan().any() for span in batch.spans]
    fine = [batch for batch in work if not batch.dense.isnan().any()]
    assert sorted(report.commits) == sorted([*spans_of(fine), *bad])
    assert report.loss.samples == 8 * len(good) and len(report.bad_batches) == len(trains) - len(good)
    assert sum(len(labels) for _, labels in report.predictions) == 8 * sum(batch.purpose == "eval" for batch in work)


def test_a_batch_with_nan_changes_nothing_and_is_skipped_and_named() -> None:
    with_bad, without = batches(12), batches(12)
    with_bad[5].dense[3, 1] = torch.nan
    del without[5]
    results = []
    for work in (with_bad, without):
        tables, dense, ledger, client = Tables(), replica("adam"), Ledger(), Client(Tables())
        client = Client(tables)
        loop = worker(dense, client, Source(work), ledger)
        loop.run()
        results.append((tables.rows, dense.weights, dense.state, ledger.take(), loop.steps, client))
    for bad, good in zip(results[0][:3], results[1][:3], strict=True):
        assert torch.equal(bad, good)
    report, steps, client = results[0][3:]
    assert steps == 11 and spans_of(client.discarded) == spans_of(with_bad[5:6])
    assert [commit for commit in report.commits if commit.skipped] == [Commit(0, 40, 48, 8, True)]
    (skipped,) = report.bad_batches
    assert skipped.spans == with_bad[5].spans and skipped.loss != skipped.loss
    assert report.loss == results[1][3].loss


def test_rows_are_committed_only_after_their_push_was_acknowledged() -> None:
    work, ledger = batches(15), Ledger()
    committed: list[Commit] = []
    checks = 0

    class Watched(Client):
        def push(self, *args: object) -> object:  # type: ignore[override]
            nonlocal checks
            committed.extend(ledger.take().commits)
            assert committed == spans_of(self.acknowledged)[: len(committed)]
            checks += len(self.acknowledged) < len(self.sent)
            return super().push(*args)  # type: ignore[arg-type]

    client = Watched(Tables())
    worker(replica(), client, Source(work), ledger, lookahead=3).run()
    committed.extend(ledger.take().commits)
    assert checks > 10, "pushes were in flight while it was looked at"
    assert committed == spans_of(work) == spans_of(client.acknowledged)


@pytest.mark.parametrize("lookahead", [0, 2])
@pytest.mark.parametrize("after", [0, 1, 7])
def test_stop_waits_for_what_was_pushed_and_leaves_the_rest_uncommitted(after: int, lookahead: int) -> None:
    work, client, ledger = batches(15), Client(Tables()), Ledger()
    loop = worker(replica(), client, Source(work), ledger, lookahead, stop=lambda: len(client.sent) >= after)
    loop.run()
    report = ledger.take()
    assert spans_of(client.sent) == report.commits == spans_of(work[:after]) and loop.steps == after
    assert looked_up(client) == spans_of(work[: len(client.lookups)])
    assert spans_of(client.discarded) == looked_up(client)[after:]
    assert len(client.discarded) == (lookahead + 1 if after else 0)


def test_before_it_waits_for_data_everything_is_acknowledged_and_committed() -> None:
    work, client, ledger = batches(6), Client(Tables()), Ledger()
    committed: list[Commit] = []
    waits: list[int] = []

    class Drained(Source):
        """Has no fourth batch until somebody waits for it."""

        def get(self, block: bool = True) -> Batch | None:
            if not block and len(client.lookups) == 3 and len(waits) < 2:
                return None
            if block:
                committed.extend(ledger.take().commits)
                waits.append(len(committed))
                assert committed == spans_of(client.sent)
            return super().get(block)

    worker(replica(), client, Drained(work), ledger, lookahead=1).run()
    assert waits == [0, 3, 6]


def test_an_evaluation_predicts_with_the_given_weights_and_trains_nothing() -> None:
    work, tables, dense, ledger = batches(4, purpose="eval"), Tables(), replica(), Ledger()
    before, rows = dense.weights.clone(), tables.rows.clone()
    centre = dense.weights * 0.5
    loop = worker(dense, Client(tables), Source(work), ledger, lookahead=1)
    loop._eval_weights = lambda: centre
    loop.run()
    assert torch.equal(dense.weights, before) and torch.equal(tables.rows, rows)
    module = build_dense(MODEL, DENSE, FEATURES, 1)
    dense.layout.bind(module, centre)
    report = ledger.take()
    assert loop.steps == 0 and report.loss.samples == 0 and report.commits == spans_of(work)
    for batch, (logits, labels) in zip(work, report.predictions, strict=True):
        with torch.no_grad():
            expected = module(batch.dense, tables.lookup(batch))
        torch.testing.assert_close(torch.from_numpy(logits), expected)
        assert labels.tolist() == batch.labels.tolist()


def test_rates_are_asked_with_the_samples_begun_before_by_all_threads() -> None:
    asked: list[int] = []

    def rates(samples: int) -> tuple[float, float]:
        asked.append(samples)
        return 0.01, float(samples)

    ledger, client = Ledger(), Client(Tables())
    client.tables.rows.zero_()
    ledger.start(100)
    worker(replica(), client, Source(batches(4)), ledger, rates=rates).run()
    assert asked == [100, 108, 116, 124] and client.rates == [100.0, 108.0, 116.0, 124.0]


def test_threads_share_one_replica_and_every_row_is_trained_once() -> None:
    work, tables, dense, ledger = batches(200), Tables(), replica(), Ledger()
    source = Source(work)
    clients = [Client(tables) for _ in range(3)]
    loops = [worker(dense, client, source, ledger, lookahead=2) for client in clients]
    failures: list[BaseException] = []

    def guarded(loop: HogwildWorker) -> None:
        try:
            loop.run()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(loop,)) for loop in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert sum(loop.steps for loop in loops) == 200
    assert sorted(ledger.take().commits) == spans_of(work)
    assert bool(dense.weights.isfinite().all()) and bool(tables.rows.isfinite().all())
