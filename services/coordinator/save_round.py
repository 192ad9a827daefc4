"""One save of a running job: who is asked what, in which order. Runs on the saver's thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from checkpoint.checkpoint_config import CheckpointConfig
from checkpoint.errors import CheckpointError
from checkpoint.manifest import FileEntry, Manifest, TableSpec
from checkpoint.save_policy import SaveOrder
from checkpoint.store import CheckpointStore
from checkpoint.ticket import SaveTicket
from services.coordinator.directory import Directory, Entry
from services.coordinator.run_state import RunState
from services.faults.phases import Phase
from services.shard.saver import ShardSaved

_POLL_S = 0.02
_HOLD_S = 5.0
"""Trainers whose coordinator died in the middle of a cut go on after so long."""


class SaveAbandonedError(RuntimeError):
    """The save was given up; nothing that was saved before is touched."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A complete save and what it cost: ``pause_s`` all trainers stood still, ``stall_s`` the slowest shard copied.

    ``pending_accesses``: of each shard, to rows since they were saved.
    """

    manifest: Manifest
    state: RunState
    pause_s: float
    stall_s: float
    write_s: float
    pending_accesses: Mapping[int, int]

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(file.bytes for file in self.manifest.files)


class SaveRound:
    """Takes saves, one at a time; ``abort`` from another thread makes it give up soon."""

    def __init__(
        self,
        config: CheckpointConfig,
        directory: Directory,
        store: CheckpointStore,
        tables: Mapping[str, TableSpec],
        owners: Collection[int],
        state: Callable[[], RunState],
        phase: Callable[[Phase], None],
    ) -> None:
        """``owners``: ids of the shards that own rows; no save is complete without all of them. ``state`` is called at
        the cut, with every trainer paused if the save is consistent.
        """
        self._config, self._directory, self._store, self._tables = config, directory, store, tables
        self._owners, self._state, self._phase = frozenset(owners), state, phase
        self.abort = threading.Event()

    def take(self, order: SaveOrder, timeline: int, parent: str | None) -> Saved:
        """The save, complete.

        Raises:
            SaveAbandonedError: somebody died or did not come to a batch edge, or ``abort`` was set.
            CheckpointError: the storage failed, or rows cannot be stored so.
        """
        started = time.perf_counter()
        self.abort.clear()
        shards, trainers = ([one for one in self._directory.all(role) if one.ready] for role in ("shard", "trainer"))
        absent = sorted(self._owners - {shard.address.index for shard in shards})
        if absent:
            raise SaveAbandonedError(f"shards {absent} are being replaced")
        if not trainers:  # nobody could be resumed from a save without the dense state
            raise SaveAbandonedError("every trainer is being replaced")
        state = self._state()
        ticket = self._store.begin(
            order.kind,
            timeline=timeline,
            samples=state.samples,
            consistent=order.consistent,
            tables=self._tables,
            parent=None if order.kind == "full" else parent,
            shards=sorted(self._owners),
        )
        try:
            if order.consistent:
                ticket, state, pause_s = self._cut(ticket, shards, trainers)
            else:
                pause_s = 0.0
                self._begin(ticket, shards)
            files, stall_s, pending = self._finish(ticket, shards, trainers)
            self._phase(Phase.SAVE_COMMIT)
            if self.abort.is_set() or not all(self._directory.knows(shard.address) for shard in shards):
                raise SaveAbandonedError("a shard was replaced meanwhile")
            manifest = self._store.commit(ticket, files, state.to_extra())
        except BaseException:
            self._give_up(ticket, shards)
            raise
        finally:
            self._phase(Phase.IDLE)
        return Saved(manifest, state, pause_s, stall_s, time.perf_counter() - started, pending)

    def _cut(
        self, ticket: SaveTicket, shards: Sequence[Entry], trainers: Sequence[Entry]
    ) -> tuple[SaveTicket, RunState, float]:
        """Everything at one instant: trainers stand still at a batch edge while shards begin."""
        timeout_s = self._config.pause_timeout_s
        started = time.perf_counter()
        pausing = [trainer.actor.pause.remote(_HOLD_S + timeout_s, timeout_s) for trainer in trainers]
        held = False
        try:
            if not all(self._await(pausing, timeout_s + _HOLD_S)):
                raise SaveAbandonedError(
                    f"a trainer did not come to a batch edge within checkpoint.pause_timeout_s={timeout_s:g}"
                )
            state = self._state()
            ticket = ticket.model_copy(update={"samples": state.samples})
            centers = [server.actor.hold_center.remote() for server in self._directory.all("sync_server")]
            self._begin(ticket, shards)
            self._await(centers, timeout_s)
            held = True
        finally:
            resumed = self._resume(trainers)
        if held and not resumed:
            raise SaveAbandonedError("the trainers went on before the cut was complete")
        return ticket, state, time.perf_counter() - started

    def _begin(self, ticket: SaveTicket, shards: Sequence[Entry]) -> None:
        self._phase(Phase.SAVE_COPY)
        timeout_s = self._config.pause_timeout_s
        how = (ticket, self._config.encoding, timeout_s, self._config.copy_share)
        self._await([shard.actor.begin_save.remote(*how) for shard in shards], timeout_s)

    def _finish(
        self, ticket: SaveTicket, shards: Sequence[Entry], trainers: Sequence[Entry]
    ) -> tuple[list[FileEntry], float, dict[int, int]]:
        timeout_s = self._config.save_timeout_s
        servers = self._directory.all("sync_server")
        calls = [shard.actor.finish_save.remote(timeout_s) for shard in shards]
        dense = [trainer.actor.save_dense.remote(ticket) for trainer in trainers]
        if servers and trainers:  # a trainer knows the layout of the centre
            dense.append(trainers[0].actor.save_center.remote(ticket))
        saved: list[ShardSaved] = self._await(calls, timeout_s)
        files: list[FileEntry] = self._await(dense, timeout_s)
        pending = {e.address.index: one.pending_accesses for e, one in zip(shards, saved, strict=True)}
        stall_s = max((one.stall_s for one in saved), default=0.0)
        return [file for one in saved for file in one.files] + files, stall_s, pending

    def _resume(self, trainers: Sequence[Entry]) -> bool:
        calls = [trainer.actor.resume.remote() for trainer in trainers]
        try:
            return all(ray.get(calls, timeout=_HOLD_S))
        except ray.exceptions.RayError:  # whoever died is replaced; the others went on by themselves
            return False

    def _await(self, calls: Sequence[Any], timeout_s: float) -> list[Any]:
        """Results of all calls; gives up when told to, or when one fails."""
        deadline = time.monotonic() + timeout_s
        pending = list(calls)
        while pending:
            done, pending = ray.wait(pending, num_returns=len(pending), timeout=_POLL_S)
            for call in done:
                try:
                    ray.get(call)
                except ray.exceptions.RayActorError as error:
                    raise SaveAbandonedError(f"an actor died meanwhile ({type(error).__name__})") from error
                except ray.exceptions.RayTaskError as error:
                    raise (error.cause if isinstance(error.cause, Exception) else error) from error
            if self.abort.is_set():
                raise SaveAbandonedError("somebody died meanwhile")
            if pending and time.monotonic() > deadline:
                raise SaveAbandonedError(f"{len(pending)} of {len(calls)} did not answer within {timeout_s:g} s")
        return list(ray.get(list(calls)))

    def _give_up(self, ticket: SaveTicket, shards: Sequence[Entry]) -> None:
        """Marks and counters return; what was written goes, now or with the next sweep."""
        try:
            aborting = [shard.actor.abort_save.remote() for shard in shards if self._directory.knows(shard.address)]
            if aborting:
                ray.wait(aborting, num_returns=len(aborting), timeout=_HOLD_S)
        finally:
            with contextlib.suppress(CheckpointError):  # a sweep deletes what this cannot
                self._store.abort(ticket)
