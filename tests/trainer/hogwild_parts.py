"""A small embedding service and batch source inside the process, for tests of the training loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainer.config import DenseConfig, ModelConfig
from trainer.data.batch import Batch, RowSpan
from trainer.dense_optimizer import DenseOptimizer
from trainer.dense_step import DenseReplica
from trainer.dlrm import build_dense
from trainer.flat_parameters import FlatLayout

FEATURES, DIM, ROWS, DENSE = 3, 4, 20, 2
MODEL = ModelConfig(embedding_dim=DIM, dense_arch=(8, DIM), over_arch=(8, 1))


def replica(optimizer: str = "sgd", seed: int = 1) -> DenseReplica:
    """Fresh dense parameters."""
    module = build_dense(MODEL, DENSE, FEATURES, seed)
    layout, chosen = FlatLayout.of(module), DenseOptimizer(DenseConfig(optimizer=optimizer))  # type: ignore[arg-type]
    weights = torch.zeros(layout.numel)
    layout.copy_from(module, weights)
    state = torch.zeros(chosen.state_numel(layout.numel))
    return DenseReplica(layout, weights, state, chosen, lambda: build_dense(MODEL, DENSE, FEATURES, seed))


def batches(count: int, size: int = 8, purpose: str = "train", seed: int = 0, lease_id: int = 0) -> list[Batch]:
    """Consecutive one-hot batches of one lease."""
    random = torch.Generator().manual_seed(seed)
    return [
        Batch(
            dense=torch.rand(size, DENSE, generator=random),
            labels=torch.randint(0, 2, (size,), generator=random).float(),
            values=torch.randint(0, ROWS, (FEATURES * size,), generator=random),
            lengths=None,
            spans=(RowSpan(lease_id, number * size, (number + 1) * size, size),),
            purpose=purpose,
        )
        for number in range(count)
    ]


def rejected_rows(start: int, end: int, lease_id: int = 0) -> Batch:
    """A batch without samples: it only answers for bad lines."""
    none = torch.zeros(0, dtype=torch.int64)
    return Batch(torch.zeros(0, DENSE), torch.zeros(0), none, None, (RowSpan(lease_id, start, end, 0),))


class Source:
    """Hands out batches in order; ``hungry`` says that none is ready yet to callers that would not wait."""

    def __init__(self, work: Sequence[Batch], hungry: Callable[[], bool] = lambda: False) -> None:
        self._work, self._hungry = deque(work), hungry
        self._lock = threading.Lock()
        self.blocked = 0

    def get(self, block: bool = True) -> Batch | None:
        with self._lock:
            self.blocked += block
            if not block and self._hungry():
                return None
            return self._work.popleft() if self._work else None


@dataclass
class Ticket:
    batch: Batch
    pooled: Tensor
    seen: int
    pushed: Ticket | None = None


@dataclass
class Tables:
    """FEATURES tables of ROWS rows, plain SGD; shared by the clients of several threads."""

    rows: Tensor = field(default_factory=lambda: torch.randn(FEATURES, ROWS, DIM, generator=_seeded()))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def lookup(self, batch: Batch) -> Tensor:
        ids = batch.values.view(FEATURES, batch.size)
        with self.lock:
            return torch.stack([self.rows[f][ids[f]] for f in range(FEATURES)], dim=1)

    def update(self, batch: Batch, grad: Tensor, rate: float) -> None:
        ids = batch.values.view(FEATURES, batch.size)
        with self.lock:
            for f in range(FEATURES):
                self.rows[f].index_add_(0, ids[f], grad[:, f], alpha=-rate)


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


class Client:
    """``EmbeddingClient`` over ``Tables``: messages are served in the order sent, acknowledged only when waited for."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.sent: list[Batch] = []
        self.acknowledged: list[Batch] = []
        self.lookups: list[tuple[Batch, int]] = []
        self.discarded: list[Batch] = []
        self.rates: list[float] = []
        self.in_flight = self.most_in_flight = 0
        self._loose: deque[Ticket] = deque()
        self._taken = 0

    def lookup(self, batch: Batch) -> Ticket:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.lookups.append((batch, len(self.sent)))
        return Ticket(batch, self.tables.lookup(batch), len(self.sent))

    def pooled(self, ticket: Ticket, out: Tensor) -> None:
        self.in_flight -= 1
        self._acknowledge(ticket)
        out.copy_(ticket.pooled)

    def push(self, ticket: Ticket, grad: Tensor, learning_rate: float, following: Batch | None) -> Ticket | None:
        self.tables.update(ticket.batch, grad, learning_rate)
        self.sent.append(ticket.batch)
        self.rates.append(learning_rate)
        if following is None:
            self._loose.append(ticket)
            return None
        answer = self.lookup(following)
        answer.pushed = ticket
        return answer

    def discard(self, ticket: Ticket) -> None:
        self._acknowledge(ticket)
        self.discarded.append(ticket.batch)

    def flush(self) -> None:
        while self._loose:
            self.acknowledged.append(self._loose.popleft().batch)

    def take_acknowledged(self) -> list[Batch]:
        taken, self._taken = self.acknowledged[self._taken :], len(self.acknowledged)
        return taken

    def _acknowledge(self, ticket: Ticket) -> None:
        if ticket.pushed is not None:
            self.acknowledged.append(ticket.pushed.batch)
            ticket.pushed = None
