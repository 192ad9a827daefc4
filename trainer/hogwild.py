"""A Hogwild worker thread: the loop every sample goes through."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from trainer.data.batch import Batch
from trainer.dense_step import DenseReplica, DenseStep
from trainer.ledger import Ledger
from trainer.pause import PauseGate
from trainer.phases import PhaseSeconds
from trainer.protocols import EmbeddingClient, Synchronizer


class BatchSource(Protocol):
    """Where batches come from; shared by the threads of a trainer."""

    def get(self, block: bool = True) -> Batch | None:
        """Next batch; ``None`` when there is none now (``block=False``) or never again (``block=True``)."""


class Rates(Protocol):
    """Learning rates at a point of the run."""

    def __call__(self, started_samples: int) -> tuple[float, float]:
        """(dense, embedding) learning rate for the step before which this trainer had begun ``started_samples``."""


class HogwildWorker:
    """Takes batches, keeps ``lookahead`` lookups in flight, trains, pushes, and accounts for every row.

    Staleness: batch t is looked up after the thread's push t - lookahead - 1 (the two travel in one message), so it
    misses at most the thread's own last ``lookahead`` pushes.
    """

    def __init__(
        self,
        replica: DenseReplica,
        precision: str,
        client: EmbeddingClient,
        source: BatchSource,
        synchronizer: Synchronizer | None,
        ledger: Ledger,
        rates: Rates,
        eval_weights: Callable[[], Tensor],
        first_pass: Callable[[Batch], bool],
        stop: Callable[[], bool],
        idle_s: Callable[[], float],
        gate: PauseGate,
        poison_due: Callable[[], bool] = lambda: False,
        *,
        lookahead: int,
        pooled_shape: tuple[int, ...],
        pooled_dtype: torch.dtype,
    ) -> None:
        """``pooled_shape`` is (largest B, F, D) or (largest B, ΣD).

        ``gate`` stops this thread at a batch edge, with everything acknowledged and accounted. ``idle_s`` counts
        seconds in which there was no work for anybody. ``poison_due``: whether a fault on purpose makes
        this batch non-finite.
        """
        self._step = DenseStep(replica, precision)
        self._client, self._source, self._sync = client, source, synchronizer
        self._ledger, self._rates, self._eval_weights, self._stop = ledger, rates, eval_weights, stop
        self._first_pass = first_pass
        self._idle_s = idle_s
        self._gate, self._poison_due = gate, poison_due
        self._lookahead = lookahead
        self._pooled = torch.empty(pooled_shape, dtype=pooled_dtype)
        self._tickets: deque[Any] = deque()
        self._losses: dict[int, tuple[float, int]] = {}  # id(batch) → loss, positives, until the push is acknowledged
        self._clock = time.perf_counter
        self.phases = PhaseSeconds()
        self.steps = 0

    def run(self) -> None:
        """Until the data ends or ``stop()``; everything sent is acknowledged when it returns."""
        torch.set_num_threads(1)
        started = self._clock()
        try:
            while not self._stop() and self._fill():
                self._work(self._tickets.popleft())
                self._account()
                if self._gate.closed:
                    self._pause()
            for ticket in self._tickets:
                self._client.discard(ticket)
            self._client.flush()
            self._account()
        finally:
            self._gate.leave()
        measured = self.phases.busy_s - self.phases.other
        self.phases.other = max(0.0, self._clock() - started - measured)

    def _pause(self) -> None:
        """At a batch edge: every push sent so far is applied and accounted before the thread parks."""
        self._client.settle(self._tickets)
        self._account()
        self._gate.park()

    def _fill(self) -> bool:
        """Have lookahead + 1 lookups in flight where batches are at hand; False at the end of the data."""
        while len(self._tickets) <= self._lookahead:
            idle = not self._tickets
            if idle:
                self._client.flush()  # before blocking: the rows of the last pushes must be committed
                if self._sync is not None:  # before that: an evaluation may follow the commit
                    self.phases.sync_stall += self._sync.settle()
                self._account()
            batch = self._next(block=idle)
            if batch is None:
                return not idle
            self._tickets.append(self._client.lookup(batch))
        return True

    def _next(self, block: bool) -> Batch | None:
        """Next batch with samples; spans of rejected rows alone are committed on the way."""
        before, idle = self._clock(), self._idle_s()
        while True:
            with self._gate.idle() if block else contextlib.nullcontext():
                batch = self._source.get(block=block)
            if batch is None or batch.size:
                break
            self._ledger.trained(batch, 0.0, 0, first_pass=False)
        self.phases.input += max(0.0, self._clock() - before - (self._idle_s() - idle))
        return batch

    def _work(self, ticket: Any) -> None:
        batch = ticket.batch
        pooled = self._pooled[: batch.size]
        before = self._clock()
        self._client.pooled(ticket, pooled)
        after_wait = self._clock()
        if batch.purpose != "train":  # its time counts as "other": phases tell where training time goes
            logits = self._step.predict(batch, pooled, self._eval_weights())
            self._client.discard(ticket)
            self._ledger.evaluated(batch, logits.numpy(), batch.labels.numpy())
            return
        self.phases.lookup_wait += after_wait - before
        if self._poison_due():
            pooled.fill_(torch.nan)
        dense_rate, embedding_rate = self._rates(self._ledger.start(batch.size))
        loss, grad = self._step.train(batch, pooled, dense_rate)
        after_dense = self._clock()
        self.phases.dense += after_dense - after_wait
        if grad is None:
            self._client.discard(ticket)
            self._ledger.skipped(batch, loss)
            return
        self._losses[id(batch)] = (loss, int(batch.labels.sum()))
        following = self._next(block=False) if not self._stop() else None
        before_push = self._clock()
        next_ticket = self._client.push(ticket, grad, embedding_rate, following)
        if next_ticket is not None:
            self._tickets.append(next_ticket)
        self.phases.push += self._clock() - before_push
        self.steps += 1
        if self._sync is not None:
            self.phases.sync_stall += self._sync.after_step()

    def _account(self) -> None:
        for batch in self._client.take_acknowledged():
            self._ledger.trained(batch, *self._losses.pop(id(batch)), self._first_pass(batch))
