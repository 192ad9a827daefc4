"""A shard's part of a save: begun in one cut, copied between requests, made durable behind their back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from checkpoint.buffers import BufferPool
from checkpoint.errors import SaveRefused, StorageError
from checkpoint.manifest import Encoding, FileEntry
from checkpoint.shard_save import CHUNK_BYTES, ShardSave
from checkpoint.ticket import SaveTicket
from checkpoint.writer import ShardWriter
from services.faults.phases import Phase, Phases
from services.shard.memory import ShardMemory

_STEP_BYTES = CHUNK_BYTES
_BUFFERS = 5
_POLL_S = 0.002
_MAX_PAUSE_S = 0.25


@dataclass(frozen=True, slots=True)
class ShardSaved:
    """A shard's durable files of a save; ``stall_s``: what its requests waited, ``write_s``: what it took in all.

    ``pending_accesses``: to its rows since each was saved, with this save.
    """

    files: tuple[FileEntry, ...]
    stall_s: float
    write_s: float
    pending_accesses: int


class ShardSaver:
    """One save at a time. All but ``finish`` is called with ``turn`` held."""

    def __init__(self, memory: ShardMemory, shard_id: int, turn: threading.Lock, phases: Phases) -> None:
        self._memory, self._shard_id, self._turn = memory, shard_id, turn
        self._writer: ShardWriter | None = None
        self._save: ShardSave | None = None
        self._undos: list[Callable[[], None]] = []
        self._begun_s, self._copy_share = 0.0, 1.0
        self._phases = phases
        self.consistent = False
        """Whether ``before_update`` has to be called."""

    def begin(self, ticket: SaveTicket, encoding: Encoding, patience_s: float, copy_share: float) -> None:
        """Choose the rows; for a consistent save this is the cut.

        ``copy_share``: portion of the time that copying may hold requests up.

        Raises:
            SaveRefused: another save is under way.
        """
        if self._save is not None:
            raise SaveRefused(f"shard {self._shard_id}: a save is under way, {ticket.save_id} cannot begin")
        memory, tracking = self._memory, self._memory.tracking
        self._begun_s = time.perf_counter()
        self._copy_share = copy_share
        self._writer = self._writer or ShardWriter(BufferPool(_BUFFERS))
        selections = tracking.selections(ticket.kind)
        self._undos = []
        memory.saving = True
        if ticket.consistent:
            self._undos.append(tracking.cut(selections))
        self._save = ShardSave(
            ticket,
            self._shard_id,
            memory.pieces,
            selections,
            encoding,
            self._writer,
            on_copied=tracking.on_copied,
            beside_bytes=tracking.most_undo_bytes(selections) if ticket.consistent else 0,
            patience_s=patience_s,
        )
        self.consistent = ticket.consistent

    def before_update(self, ids: Tensor, starts: Sequence[int]) -> None:
        """Keep what a push is about to change and a consistent save has not copied yet: ids L, ``starts`` T+1."""
        save = self._save
        if save is None or save.copied:
            return
        for index, (start, end) in enumerate(pairwise(starts)):
            if end > start:
                save.before_update(index, ids[start:end])

    def finish(self, timeout_s: float) -> ShardSaved:
        """Copy what is left, chunk by chunk between requests, and wait until it is durable.

        Raises:
            StorageError: the storage failed, or takes longer than ``timeout_s``; marks and counters returned.
            SaveRefused: nothing is under way: it was given up.
        """
        torch.set_num_threads(1)
        save = self._save
        if save is None:
            raise SaveRefused(f"shard {self._shard_id}: no save is under way")
        deadline = time.monotonic() + timeout_s
        try:
            while not self._step(save):
                if time.monotonic() > deadline:
                    raise StorageError(
                        f"shard {self._shard_id}: its rows were not copied within {timeout_s:g} s "
                        "(checkpoint.save_timeout_s): the storage takes too little, or the save is too large for it"
                    )
            files = save.finish(max(0.0, deadline - time.monotonic()))
        except Exception:
            with self._turn:
                self._give_up(save)
            raise
        with self._turn:
            if self._save is not save:
                raise SaveRefused(f"shard {self._shard_id}: the save was given up")
            self._end()
            pending = self._memory.tracking.pending_accesses
        return ShardSaved(tuple(files), save.stall_s, time.perf_counter() - self._begun_s, pending)

    def abort(self) -> None:
        """Give the save under way up, if there is one."""
        if self._save is not None:
            self._give_up(self._save)

    def _step(self, save: ShardSave) -> bool:
        """One chunk; True when there are no more."""
        with self._turn:
            if self._save is not save:
                raise SaveRefused(f"shard {self._shard_id}: the save was given up")
            before = save.stall_s
            self._phases.enter(Phase.SAVE_COPY)
            done = save.step(_STEP_BYTES)
            self._phases.enter(Phase.IDLE)
            spent_s = save.stall_s - before
        if not done:  # the turn is nobody's by right: without a pause requests would seldom get it
            time.sleep(min(_MAX_PAUSE_S, max(_POLL_S, spent_s * (1.0 / self._copy_share - 1.0))))
        return done

    def _give_up(self, save: ShardSave) -> None:
        if self._save is not save:
            return
        save.fail()
        while self._undos:
            self._undos.pop()()
        self._end()

    def _end(self) -> None:
        self._save = None
        self._undos = []
        self.consistent = False
        self._memory.saving = False
        self._memory.tracking.settle()
