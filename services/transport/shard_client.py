"""One worker thread's line to one shard: slabs and a doorbell on the same node, Ray objects across nodes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import ray
import torch
from ray.exceptions import ActorUnavailableError, RayActorError
from torch import Tensor

from services.identity import Address
from services.transport.doorbell import Doorbell
from services.transport.errors import ShardUnavailableError
from services.transport.messages import (
    WIRE,
    Array,
    ObjectLookup,
    ObjectPush,
    Sender,
    SlabLookup,
    SlabPush,
    narrow_ids,
    to_array,
    to_tensor,
)
from services.transport.routing import RoutedIds
from services.transport.slab import SlabSlot, create_slab, slots_of

_RETRY_S = 0.5


class ShardTarget(NamedTuple):
    """Where a shard is: its incarnation, its actor, its keeper (``None``: another node, no shared memory)."""

    address: Address
    actor: Any
    keeper: str | None


class LineSpec(NamedTuple):
    """Sizes and formats of a line, equal for slabs and objects."""

    pieces: int
    dim: int
    batch: int
    ids: int
    slots: int
    wire: str


class Request(Protocol):
    """One lookup, later one push, of one shard."""

    def grad_area(self) -> Tensor:
        """B×ΣD in the wire format: the place to write the gradient of the pooled rows."""


class ShardLine(Protocol):
    """What the embedding client needs of a transport."""

    def request(self, routed: RoutedIds, batch: int) -> Any:
        """Claim a request and write the ids into it."""

    def send(self, push: Any | None, sequence: int, learning_rate: float, lookup: Any | None) -> Any:
        """One message: apply ``push``, then answer ``lookup``. Returns what to wait for."""

    def wait(self, call: Any) -> Any:
        """Until the message is answered; its result is for ``pooled``.

        Raises:
            ShardUnavailableError: the shard died.
        """

    def pooled(self, request: Any, result: Any) -> Tensor:
        """Pooled rows B×ΣD of an answered lookup; ``result`` is what ``wait`` returned."""

    def release(self, request: Any) -> None:
        """The request is over (push acknowledged or not wanted): it may be used again."""


class _SlabRequest:
    """Also readable as an ``_ObjectRequest``: when the shard moves to another node, it is sent as one."""

    __slots__ = ("index", "slab_id", "slot")

    def __init__(self, slab_id: int, index: int, slot: SlabSlot) -> None:
        self.slab_id, self.index, self.slot = slab_id, index, slot

    def grad_area(self) -> Tensor:
        return self.slot.rows

    @property
    def grad(self) -> Tensor:
        return self.slot.rows

    @property
    def ids(self) -> Tensor:
        return self.slot.ids

    @property
    def offsets(self) -> Tensor | None:
        return None if self.slot.unit else self.slot.offsets

    @property
    def weights(self) -> Tensor | None:
        return self.slot.weights

    @property
    def batch(self) -> int:
        return self.slot.batch


class SlabLine:
    """Ids, pooled rows and gradients stay in memory that both processes map; the doorbell carries slot numbers."""

    def __init__(self, trainer: Address, thread: int, target: ShardTarget, spec: LineSpec, sender: Sender) -> None:
        assert target.keeper is not None
        self._trainer, self._target, self._spec = trainer, target, spec
        self._thread = thread
        self._slabs: dict[int, str] = {}  # slab_id → name at the keeper
        self._doorbell = Doorbell(target.keeper, target.address, sender)
        self._free = self._allocate(spec.slots, spec.ids, weighted=False)

    def request(self, routed: RoutedIds, batch: int) -> _SlabRequest:
        """Claim a free slot; one too small for a multi-hot burst, or without room for weights, is replaced."""
        if not self._free:
            raise RuntimeError(f"all {self._spec.slots} slab slots to {self._target.address} are in flight")
        request = self._free.pop()
        weighted = routed.weights is not None
        if routed.count > request.slot.ids_capacity:
            (request,) = self._allocate(1, 2 * routed.count, weighted)
        elif weighted and not request.slot.holds_weights:
            (request,) = self._allocate(1, request.slot.ids_capacity, weighted)
        ids, offsets, weights = request.slot.prepare(
            self._trainer.generation, batch, routed.count, unit=routed.lengths is None, weighted=weighted
        )
        routed.write(ids, offsets, weights)
        return request

    def send(self, push: _SlabRequest | None, sequence: int, learning_rate: float, lookup: _SlabRequest | None) -> int:
        """One message with a few numbers in it."""
        return self._doorbell.ring(
            None if push is None else SlabPush(push.slab_id, push.index, sequence, learning_rate),
            None if lookup is None else SlabLookup(lookup.slab_id, lookup.index),
        )

    def wait(self, call: int) -> None:
        """Until the shard has answered."""
        self._doorbell.wait(call)

    def pooled(self, request: _SlabRequest, result: Any) -> Tensor:
        """The slot's row area, which the shard has filled."""
        return request.slot.rows

    def release(self, request: _SlabRequest) -> None:
        """Back to the free list."""
        self._free.append(request)

    def follow(self, target: ShardTarget, sender: Sender) -> None:
        """Go on with the shard's successor on the same node; what was sent and not answered has to be sent again.

        Raises:
            ShardUnavailableError: the successor is gone too.
        """
        assert target.keeper is not None
        self._doorbell = Doorbell(target.keeper, target.address, sender)
        self._target = target
        self._attach(self._slabs)

    def _allocate(self, slots: int, ids: int, weighted: bool) -> list[_SlabRequest]:
        spec, target = self._spec, self._target
        slab_id = self._thread << 16 | len(self._slabs)
        name = f"{self._trainer}/slab-{target.address}-{slab_id}"
        region = create_slab(
            str(target.keeper),
            name,
            self._trainer,
            slots=slots,
            batch=spec.batch,
            ids=ids,
            pieces=spec.pieces,
            dim=spec.dim,
            wire=spec.wire,
            weighted=weighted,
        )
        self._slabs[slab_id] = name
        with contextlib.suppress(ShardUnavailableError):  # who waits for an answer will follow, with every slab
            self._attach({slab_id: name})
        return [_SlabRequest(slab_id, index, slot) for index, slot in enumerate(slots_of(region))]

    def _attach(self, slabs: Mapping[int, str]) -> None:
        actor = self._target.actor
        while True:
            try:
                ray.get([actor.attach_slab.remote(self._trainer, slab_id, name) for slab_id, name in slabs.items()])
                return
            except ActorUnavailableError:  # the way to it was cut, it may live
                time.sleep(_RETRY_S)
            except RayActorError as error:
                raise ShardUnavailableError(self._target.address, type(error).__name__) from error


class _ObjectCall:
    """A call and what it was made with, so that it can be made again."""

    __slots__ = ("arguments", "result")

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.arguments, self.result = arguments, None


class _ObjectRequest:
    __slots__ = ("batch", "grad", "ids", "offsets", "weights")

    def __init__(self, ids: Tensor, offsets: Tensor | None, weights: Tensor | None, batch: int, grad: Tensor) -> None:
        self.ids, self.offsets, self.weights, self.batch, self.grad = ids, offsets, weights, batch, grad

    def grad_area(self) -> Tensor:
        return self.grad


class ObjectLine:
    """Everything travels as arrays through Ray's object store: works between any two nodes."""

    def __init__(self, target: ShardTarget, spec: LineSpec, sender: Sender) -> None:
        self._target, self._spec, self._sender = target, spec, sender

    def request(self, routed: RoutedIds, batch: int) -> _ObjectRequest:
        """Fresh tensors: Ray may still hold those of the last request."""
        ids = torch.empty(routed.count, dtype=torch.int64)
        offsets = None if routed.lengths is None else torch.empty(self._spec.pieces * batch + 1, dtype=torch.int64)
        weights = None if routed.weights is None else torch.empty(routed.count)
        routed.write(ids, ids if offsets is None else offsets, weights)
        grad = torch.empty(batch, self._spec.dim, dtype=WIRE[self._spec.wire])
        return _ObjectRequest(narrow_ids(ids), offsets, weights, batch, grad)

    def send(
        self,
        push: _ObjectRequest | _SlabRequest | None,
        sequence: int,
        learning_rate: float,
        lookup: _ObjectRequest | _SlabRequest | None,
    ) -> _ObjectCall:
        """One actor call with the arrays in it."""
        pushed = looked_up = None
        if push is not None:
            pushed = ObjectPush(
                sequence,
                learning_rate,
                to_array(push.ids),
                _optional_array(push.offsets),
                push.batch,
                to_array(push.grad),
                _optional_array(push.weights),
            )
        if lookup is not None:
            looked_up = ObjectLookup(
                to_array(lookup.ids),
                _optional_array(lookup.offsets),
                lookup.batch,
                self._spec.wire,
                _optional_array(lookup.weights),
            )
        call = _ObjectCall((self._sender, pushed, looked_up))
        call.result = self._target.actor.step_objects.remote(*call.arguments)
        return call

    def wait(self, call: _ObjectCall) -> Any:
        """The call's result."""
        while True:
            try:
                return ray.get(call.result)
            except (
                ActorUnavailableError
            ):  # the way to it was cut, it may live: a push that arrived is not applied again
                time.sleep(_RETRY_S)
                call.result = self._target.actor.step_objects.remote(*call.arguments)
            except RayActorError as error:
                raise ShardUnavailableError(self._target.address, type(error).__name__) from error

    def pooled(self, request: _ObjectRequest | _SlabRequest, result: Any) -> Tensor:
        """The call's result."""
        return to_tensor(result)

    def release(self, request: _ObjectRequest | _SlabRequest) -> None:
        """Nothing to return."""


def _optional_array(tensor: Tensor | None) -> Array | None:
    return None if tensor is None else to_array(tensor)
