"""``EmbeddingClient`` of one worker thread over all shards: one small message per shard and step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from services.identity import Address
from services.shard.core import SEQUENCE_BITS
from services.transport.errors import ShardUnavailableError
from services.transport.messages import WIRE, Sender, fp16_gradient_scale
from services.transport.routing import Router
from services.transport.shard_client import LineSpec, ObjectLine, ShardLine, ShardTarget, SlabLine
from trainer.data.batch import Batch
from trainer.pooling import MeanPooling

_FP16_MAX = torch.finfo(torch.float16).max

POOLED_TYPE = {**WIRE, "fp16": torch.float32}
"""Type of the pooled rows a trainer computes with: FP16 gradients would lose digits before they can be scaled."""


Locate = Callable[[Address], ShardTarget]
"""Waits for the successor of a shard incarnation that is gone; raises ``ShardUnavailableError`` when there is none."""


@dataclass(slots=True)
class _Sent:
    """A message to one shard, kept until it is answered, so that it can be sent again to the shard's successor."""

    push: Any | None
    sequence: int
    learning_rate: float
    lookup: Any | None
    call: Any = None


@dataclass(slots=True)
class LookupTicket:
    """One batch's requests, one per shard, and the messages that ask for them (and carry the push of ``pushed``)."""

    batch: Batch
    requests: list[Any]
    sent: list[_Sent] = field(default_factory=list)
    pushed: LookupTicket | None = None
    answers: list[Any] | None = None


class ShardedEmbeddingClient:
    """Lookups and numbered pushes over every shard that owns rows."""

    def __init__(
        self,
        trainer: Address,
        thread: int,
        stream: int,
        router: Router,
        targets: Sequence[ShardTarget],
        *,
        batch: int,
        lookahead: int,
        wire: str,
        mean: Sequence[bool] = (),
        max_gradient: float | None = None,
        locate: Locate | None = None,
    ) -> None:
        """Open a line to each shard; ``targets[i].keeper`` is given where shard i shares this node's memory.

        ``mean``: for each feature whether its ids are averaged (none without it). ``max_gradient``: the pooled rows'
        gradients are clamped to ±this. ``locate``: without it a lost shard is an error.
        """
        self._trainer, self._thread, self._stream, self._locate = trainer, thread, stream, locate
        self._router = router
        self._mean = MeanPooling(router.dims, mean) if any(mean) else None
        self._max_gradient = max_gradient
        self._fp16 = wire == "fp16"
        self._shards = [
            i for i, route in enumerate(router.routes) if route.pieces
        ]  # one that owns nothing is not asked
        self._specs = [
            LineSpec(
                pieces=len(router.routes[shard_id].pieces),
                dim=router.routes[shard_id].total_dim,
                batch=batch,
                ids=batch * len(router.routes[shard_id].pieces),  # multi-hot bursts get a larger slot when they come
                slots=2 * lookahead + 2,  # lookahead + 1 pushes unacknowledged, as many lookups under way
                wire=wire,
            )
            for shard_id in self._shards
        ]
        self._lines: list[ShardLine] = []
        for shard_id, spec in zip(self._shards, self._specs, strict=True):
            target, sender = targets[shard_id], self._sender(targets[shard_id])
            if target.keeper is None:
                self._lines.append(ObjectLine(target, spec, sender))
            else:
                self._lines.append(SlabLine(trainer, thread, target, spec, sender))
        self._unanswered: list[deque[_Sent]] = [deque() for _ in self._lines]
        self._sequence = trainer.generation << SEQUENCE_BITS
        self._unacknowledged: deque[LookupTicket] = deque()  # pushes that were sent without a lookup behind them
        self._acknowledged: list[Batch] = []

    def lookup(self, batch: Batch) -> LookupTicket:
        """Start the lookup of ``batch`` on every shard."""
        ticket = self._prepare(batch)
        ticket.sent = [self._send(index, _Sent(None, 0, 0.0, request)) for index, request in enumerate(ticket.requests)]
        return ticket

    def pooled(self, ticket: LookupTicket, out: Tensor) -> None:
        """Wait for all shards, then assemble their pooled rows into ``out``, B×F×D or B×ΣD."""
        results = self._answers(ticket)
        for shard_id, line, request, result in zip(self._shards, self._lines, ticket.requests, results, strict=True):
            self._router.gather(shard_id, line.pooled(request, result), out)
        if self._mean is not None and (scale := self._mean.scale(ticket.batch)) is not None:
            self._mean.apply(scale, out)

    def push(
        self, ticket: LookupTicket, grad: Tensor, learning_rate: float, following: Batch | None
    ) -> LookupTicket | None:
        """Send the gradient, numbered, together with ``following``'s lookup. ``grad`` may be overwritten."""
        self._sequence += 1
        self._prepare_gradient(ticket.batch, grad)
        for shard_id, request in zip(self._shards, ticket.requests, strict=True):
            self._router.scatter(shard_id, grad, request.grad_area())
        following_ticket = None if following is None else self._prepare(following)
        lookups = [None] * len(self._lines) if following_ticket is None else following_ticket.requests
        ticket.sent = [
            self._send(index, _Sent(request, self._sequence, learning_rate, lookup))
            for index, (request, lookup) in enumerate(zip(ticket.requests, lookups, strict=True))
        ]
        if following_ticket is None:
            self._unacknowledged.append(ticket)
            return None
        following_ticket.sent, following_ticket.pushed = ticket.sent, ticket
        return following_ticket

    def discard(self, ticket: LookupTicket) -> None:
        """Give the requests back without a push of their own; one that travelled with the lookup is waited for."""
        if ticket.pushed is not None:
            self._answers(ticket)
        for line, request in zip(self._lines, ticket.requests, strict=True):
            line.release(request)

    def flush(self) -> None:
        """Wait for the acknowledgement of pushes that no lookup follows."""
        while self._unacknowledged:
            self._wait(self._unacknowledged[0].sent)
            self._acknowledge(self._unacknowledged.popleft())

    def settle(self, tickets: Iterable[LookupTicket]) -> None:
        """Wait for every push sent so far; the lookups that travel with them are answered too."""
        self.flush()
        for ticket in tickets:
            if ticket.pushed is not None:
                self._answers(ticket)

    def take_acknowledged(self) -> list[Batch]:
        """Batches acknowledged since the last call."""
        batches, self._acknowledged = self._acknowledged, []
        return batches

    def _prepare(self, batch: Batch) -> LookupTicket:
        if len(self._unacknowledged) > 0:
            self.flush()  # their slots are needed
        routed = self._router.route(batch)
        requests = [
            line.request(routed[shard_id], batch.size) for shard_id, line in zip(self._shards, self._lines, strict=True)
        ]
        return LookupTicket(batch, requests)

    def _prepare_gradient(self, batch: Batch, grad: Tensor) -> None:
        """Make it in place the gradient of the shards' sums, in the wire's scale."""
        if self._max_gradient is not None:  # before the mean, as fbgemm does
            grad.clamp_(-self._max_gradient, self._max_gradient)
        if self._mean is not None and (scale := self._mean.scale(batch)) is not None:
            self._mean.apply(scale, grad)
        if self._fp16:
            grad.mul_(fp16_gradient_scale(batch.size)).clamp_(-_FP16_MAX, _FP16_MAX)

    def _acknowledge(self, ticket: LookupTicket) -> None:
        self.discard(ticket)
        self._acknowledged.append(ticket.batch)

    def _sender(self, target: ShardTarget) -> Sender:
        return Sender(self._trainer.index, self._trainer.generation, self._stream, target.address.generation)

    def _send(self, index: int, sent: _Sent) -> _Sent:
        sent.call = self._lines[index].send(sent.push, sent.sequence, sent.learning_rate, sent.lookup)
        self._unanswered[index].append(sent)
        return sent

    def _answers(self, ticket: LookupTicket) -> list[Any]:
        """What the shards answered to a lookup; the push that travelled with it is acknowledged by that."""
        if ticket.answers is None:
            ticket.answers = self._wait(ticket.sent)
        if ticket.pushed is not None:
            self._acknowledge(ticket.pushed)
            ticket.pushed = None
        return ticket.answers

    def _wait(self, sent: list[_Sent]) -> list[Any]:
        return [self._answer(index, own) for index, own in enumerate(sent)]

    def _answer(self, index: int, sent: _Sent) -> Any:
        while True:
            try:
                result = self._lines[index].wait(sent.call)
            except ShardUnavailableError as lost:
                self._follow(index, lost)
                continue
            except BaseException:
                self._unanswered[index].remove(sent)
                raise
            self._unanswered[index].remove(sent)
            return result

    def _follow(self, index: int, lost: ShardUnavailableError) -> None:
        """Send everything unanswered to the shard's successor, which skips the pushes that were applied."""
        while True:
            if self._locate is None:
                raise lost
            target = self._locate(lost.shard)
            line, sender = self._lines[index], self._sender(target)
            try:
                if isinstance(line, SlabLine) and target.keeper is not None:
                    line.follow(target, sender)
                else:  # what lies in slabs is sent as objects from now on
                    line = self._lines[index] = ObjectLine(target, self._specs[index], sender)
            except ShardUnavailableError as again:
                lost = again
                continue
            for sent in self._unanswered[index]:
                sent.call = line.send(sent.push, sent.sequence, sent.learning_rate, sent.lookup)
            return
