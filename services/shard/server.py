"""What a shard serves: slab and object requests of many trainer threads, with generations checked."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import torch
from torch import Tensor

from checkpoint.manifest import Encoding
from checkpoint.restore import RestoreReport
from checkpoint.ticket import SaveTicket
from services.allocator import keep_freed_memory
from services.faults.phase_board import open_phase_board
from services.faults.phases import Phase
from services.identity import Address, StaleGenerationError
from services.memory.descriptors import raise_descriptor_limit
from services.memory.process import peak_rss_bytes
from services.memory.region import Region
from services.shard.core import ShardCore
from services.shard.doorbell_server import DoorbellServer
from services.shard.memory import MarkedUpdate, ShardSpec
from services.shard.restoring import RestoreOrder
from services.shard.saver import ShardSaved, ShardSaver
from services.transport.messages import (
    WIRE,
    Array,
    ObjectLookup,
    ObjectPush,
    Sender,
    SlabLookup,
    SlabPush,
    fp16_gradient_scale,
    to_array,
    to_tensor,
)
from services.transport.slab import SlabSlot, slots_of

_KEPT_BYTES = 64 << 20
"""Freed memory a shard keeps for its next answers: pooled rows and wide gradients."""


class ShardServer:
    """One shard's requests, one at a time: slab requests come by the doorbell's thread, all others by the actor's."""

    def __init__(self, address: Address, keeper: str, board: str | None = None) -> None:
        """Idle until ``load`` or ``adopt`` gives it rows; then its doorbell is heard.

        ``board``: where it says what it is doing, for faults on purpose.
        """
        keep_freed_memory(_KEPT_BYTES)
        raise_descriptor_limit()  # one a trainer thread
        torch.set_num_threads(1)  # two have cost 50× in fbgemm's backward (DESIGN trap 3)
        self._address, self._keeper = address, keeper
        self._core: ShardCore | None = None
        self._saver: ShardSaver | None = None
        self._trainers: dict[int, int] = {}
        self._slots: dict[tuple[int, int, int], list[SlabSlot]] = {}
        self._turn = threading.Lock()
        self._board, self._phases = board, open_phase_board(board, address.role, address.index, address.generation)
        self._doorbell: DoorbellServer | None = None

    def load(self, spec: ShardSpec, order: RestoreOrder | None = None) -> RestoreReport | None:
        """Create the rows: their first values, or those of saves."""
        if order is None:
            self._serve(ShardCore.create(self._keeper, self._address, spec))
            return None
        core, report = ShardCore.restored(self._keeper, self._address, spec, order)
        self._serve(core)
        return report

    def restore(self, address: Address, spec: ShardSpec, order: RestoreOrder) -> RestoreReport | None:
        """Become ``address``, whose former generation's rows are gone, with the rows of saves."""
        self._become(address)
        self._phases.enter(Phase.RESTORE)
        core, report = ShardCore.restored(self._keeper, address, spec, order)
        self._serve(core)
        return report

    def roll_back(self, order: RestoreOrder, trainers: Mapping[int, int]) -> RestoreReport | None:
        """Set the rows back to everybody's common save.

        ``trainers``: the youngest generation of each trainer by then; what older ones still send is refused.
        """
        with self._turn:
            core = self._running
            for trainer_id, generation in trainers.items():
                self._admit(trainer_id, generation)
            if self._saver is not None:
                self._saver.abort()
            self._core = None  # what fails in the middle serves nothing
            self._phases.enter(Phase.RESTORE)
            report = core.roll_back(order)
            self._core = core
            self._phases.enter(Phase.IDLE)
        return report

    def begin_save(self, ticket: SaveTicket, encoding: Encoding, patience_s: float, copy_share: float) -> None:
        """Begin this shard's part of a save; for a consistent one this is its cut."""
        with self._turn:
            core, saver = self._running, self._saving
            saver.begin(ticket, encoding, patience_s, copy_share)
            core.before_update = saver.before_update if saver.consistent else None

    def finish_save(self, timeout_s: float) -> ShardSaved:
        """Copy it between requests, and wait until it is durable."""
        try:
            return self._saving.finish(timeout_s)
        finally:
            with self._turn:
                if self._core is not None and not self._saving.consistent:
                    self._core.before_update = None

    def abort_save(self) -> None:
        """Give up the save under way, if any."""
        with self._turn:
            if self._saver is not None:
                self._saver.abort()

    def adopt(self, address: Address) -> MarkedUpdate | None:
        """Become ``address`` and take over the memory of its dead former generation.

        Tells which update it died in, if any.
        """
        self._become(address)
        core, marked = ShardCore.adopt(self._keeper, address)
        self._serve(core)
        return marked

    def attach_slab(self, trainer: Address, slab_id: int, name: str) -> None:
        """Map a slab that ``trainer`` made for this shard."""
        trainer = Address(*trainer)
        with self._turn:
            self._admit(trainer.index, trainer.generation)
            region = Region.open(self._keeper, name)
            if region.generation != trainer.generation:
                raise StaleGenerationError.between(f"slab {name}", region.generation, trainer.generation)
            self._slots[trainer.index, trainer.generation, slab_id] = slots_of(region)

    def step(self, sender: Sender, push: SlabPush | None, lookup: SlabLookup | None) -> None:
        """Apply the push, then answer the lookup, both in slab slots."""
        with self._turn:
            self._check(sender)
            if push is not None:
                self._phases.enter(Phase.UPDATE)
                slot = self._slot(sender, push.slab_id, push.slot)
                self._push(
                    sender.stream,
                    push.sequence,
                    slot.rows,
                    slot.ids,
                    self._offsets(slot),
                    push.learning_rate,
                    slot.weights,
                )
            if lookup is not None:
                self._phases.enter(Phase.LOOKUP)
                slot = self._slot(sender, *lookup)
                slot.rows.copy_(self._running.lookup(slot.ids, self._offsets(slot), slot.weights))
            self._phases.enter(Phase.IDLE)

    def step_objects(self, sender: Sender, push: ObjectPush | None, lookup: ObjectLookup | None) -> Array | None:
        """The same with arrays that travel through Ray's object store; returns the pooled rows B×ΣD."""
        sender = Sender(*sender)
        with self._turn:
            self._check(sender)
            core = self._running
            if push is not None:
                self._phases.enter(Phase.UPDATE)
                push = ObjectPush(*push)
                offsets = core.unit_offsets(push.batch) if push.offsets is None else to_tensor(push.offsets)
                self._push(
                    sender.stream,
                    push.sequence,
                    to_tensor(push.grad),
                    to_tensor(push.ids).long(),
                    offsets,
                    push.learning_rate,
                    None if push.weights is None else to_tensor(push.weights),
                )
            if lookup is None:
                self._phases.enter(Phase.IDLE)
                return None
            self._phases.enter(Phase.LOOKUP)
            lookup = ObjectLookup(*lookup)
            offsets = core.unit_offsets(lookup.batch) if lookup.offsets is None else to_tensor(lookup.offsets)
            weights = None if lookup.weights is None else to_tensor(lookup.weights)
            pooled = core.lookup(to_tensor(lookup.ids).long(), offsets, weights).to(WIRE[lookup.wire])
            self._phases.enter(Phase.IDLE)
            return to_array(pooled)

    def read_rows(self) -> dict[str, Array]:
        """Copies of the flat weights and optimizer state, in piece order (for tests and exports of small models)."""
        with self._turn:
            memory = self._running.memory
            rows = {"weights": memory.weights.numpy().copy()}
            if memory.momentum is not None:
                rows["momentum1"] = memory.momentum.numpy().copy()
            return rows

    def last_applied(self, stream: int) -> int:
        """Number of the last push of ``stream`` that was applied."""
        return self._running.memory.last_applied(stream)

    def stats(self) -> dict[str, int]:
        """Pushes, samples and lookups so far, and memory in bytes; nothing before there are rows."""
        if self._core is None:
            return {}
        memory = self._core.memory
        return {**memory.counts, **memory.sizes, "peak_rss_bytes": peak_rss_bytes()}

    def _become(self, address: Address) -> None:
        if address != self._address:
            self._phases.leave()
            self._phases = open_phase_board(self._board, address.role, address.index, address.generation)
        self._address = address

    def _serve(self, core: ShardCore) -> None:
        with self._turn:
            self._core = core
            self._saver = ShardSaver(core.memory, self._address.index, self._turn, self._phases)
            self._phases.enter(Phase.IDLE)
        if self._doorbell is None:
            self._doorbell = DoorbellServer(self._keeper, self._address, self.step)

    @property
    def _saving(self) -> ShardSaver:
        if self._saver is None:
            raise RuntimeError(f"{self._address} has no rows yet: there is nothing to save")
        return self._saver

    @property
    def _running(self) -> ShardCore:
        if self._core is None:
            raise RuntimeError(f"{self._address} has no rows yet: a lookup before load or adopt is refused")
        return self._core

    def _admit(self, trainer_id: int, generation: int) -> None:
        current = self._trainers.get(trainer_id, 0)
        if generation < current:
            raise StaleGenerationError.between(f"a call of trainer {trainer_id}", generation, current)
        if generation > current:
            self._trainers[trainer_id] = generation
            self._slots = {key: slots for key, slots in self._slots.items() if key[0] != trainer_id}

    def _check(self, sender: Sender) -> None:
        if sender.shard_generation != self._address.generation:
            raise StaleGenerationError.between(
                f"a call to shard {self._address.index}", sender.shard_generation, self._address.generation
            )
        self._admit(sender.trainer_id, sender.trainer_generation)

    def _slot(self, sender: Sender, slab_id: int, index: int) -> SlabSlot:
        slot = self._slots[sender.trainer_id, sender.trainer_generation, slab_id][index]
        slot.check(sender.trainer_generation)
        return slot

    def _offsets(self, slot: SlabSlot) -> Tensor:
        return self._running.unit_offsets(slot.batch) if slot.unit else slot.offsets

    def _push(
        self,
        stream: int,
        sequence: int,
        grad: Tensor,
        ids: Tensor,
        offsets: Tensor,
        rate: float,
        weights: Tensor | None,
    ) -> None:
        wide = grad.float()
        if grad.dtype == torch.float16:
            wide /= fp16_gradient_scale(grad.shape[0])
        self._running.push(stream, sequence, wide, ids, offsets, rate, weights)
