"""The two interfaces through which the training loop sees the rest of the service."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from torch import Tensor

from trainer.data.batch import Batch


class Ticket(Protocol):
    """A lookup under way, and later the place its gradient goes."""

    batch: Batch


class EmbeddingClient(Protocol):
    """Embedding rows of one worker thread. Not shared between threads.

    Pushes are numbered by the client and applied exactly once by every shard, in order.
    """

    def lookup(self, batch: Batch) -> Any:
        """Start the lookup of ``batch``; returns its ticket at once."""

    def pooled(self, ticket: Any, out: Tensor) -> None:
        """Wait for the lookup and write the pooled rows into ``out`` B×F×D, or B×ΣD where tables differ in width.

        Raises:
            ShardUnavailableError: a shard died.
        """

    def push(self, ticket: Any, grad: Tensor, learning_rate: float, following: Batch | None) -> Any:
        """Send the gradient of the pooled rows (of their shape) and, in the same message, start ``following``'s lookup.

        ``grad`` may be overwritten. Returns ``following``'s ticket, or ``None`` without one. The ticket given is spent.
        """

    def discard(self, ticket: Any) -> None:
        """Spend a ticket without a push (evaluation, skipped batches, the end).

        Waits for the acknowledgement of the push that started the ticket's lookup, if it is still out.
        """

    def flush(self) -> None:
        """Wait until every push sent so far was acknowledged."""

    def settle(self, tickets: Iterable[Any]) -> None:
        """Wait for every push that was sent, also those with which the lookups of ``tickets`` travel."""

    def take_acknowledged(self) -> list[Batch]:
        """Batches whose pushes were acknowledged since the last call, in order."""


class Synchronizer(Protocol):
    """Keeps this trainer's dense replica close to the others'."""

    def after_step(self) -> float:
        """Called by every worker thread after each of its steps; returns the seconds it made the thread wait."""

    def settle(self) -> float:
        """Called by a thread that has to wait for input anyway: an exchange, unless there was no step since the last.

        So the replicas agree before an evaluation, and at the end. Returns the seconds it took.
        """
