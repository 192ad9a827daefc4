"""Full recovery: everybody goes back to one consistent save, in a new timeline."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray

from checkpoint.errors import SaveNotFound
from checkpoint.store import CheckpointStore
from services.coordinator.directory import Directory, Entry
from services.coordinator.launch import Launcher
from services.coordinator.open_saver import newest_consistent
from services.coordinator.recovery import DIED_TOO
from services.coordinator.row_recovery import RowRecovery
from services.coordinator.run_state import RunState
from services.coordinator.saver import Saver
from services.coordinator.setup import RunSetup
from services.coordinator.supervisor import Supervisor
from services.identity import Address
from services.shard.restoring import RestoreOrder
from services.trainer.dense_start import DenseStart, SavedAt

_STOP_S = 10.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Where everybody is now; ``state`` is ``None`` at the beginning of the run: nothing had been saved."""

    save_id: str | None
    state: RunState | None
    timeline: int
    load_s: float
    skipped: tuple[str, ...]
    pids: dict[str, int]
    """Of shards that are other processes now."""

    @property
    def samples(self) -> int:
        """Trained."""
        return self.state.samples if self.state else 0


class Rollback:
    """Stops the trainers, sets every shard back, and gives the trainers new incarnations in their old processes."""

    def __init__(
        self,
        directory: Directory,
        launcher: Launcher,
        supervisor: Supervisor,
        setup: RunSetup,
        store: CheckpointStore,
        saver: Saver,
        rows: RowRecovery,
        place: Callable[[Entry], str],
    ) -> None:
        """``place``: the node of a lost shard's next incarnation."""
        self._directory, self._launcher, self._supervisor, self._setup = directory, launcher, supervisor, setup
        self._store, self._saver, self._rows, self._place = store, saver, rows, place

    def run(self, lost: list[Entry], retire_books: Callable[[], None]) -> RolledBack:
        """Everybody but the trainers' threads is at the save when this returns; ``start_trainers`` follows.

        ``lost``: shards without rows, not in the directory any more. ``retire_books`` is called when no trainer works
        any more and before anything is set back.

        Raises:
            CheckpointError: the save cannot be read.
        """
        with self._saver.hold():
            trainers = self._stop_trainers()
            retire_books()
            started = time.monotonic()
            try:
                choice = newest_consistent(self._store)
                save_id: str | None = choice.chain.newest.save_id
                state: RunState | None = RunState.of(choice.chain.newest)
                skipped = tuple(map(str, choice.skipped))
            except SaveNotFound as nothing:
                save_id, state, skipped = None, None, (str(nothing),)
            timeline = self._store.open_timeline(save_id)
            successors = [(old, self._directory.next_address("trainer", old.address.index)) for old in trainers]
            generations = {address.index: address.generation for _, address in successors}
            pids = self._set_back(lost, RestoreOrder(self._store.url, self._store.run, save_id), generations)
            for old, address in successors:
                self._succeed(old, address)
            found = RolledBack(save_id, state, timeline, time.monotonic() - started, skipped, pids)
            self._saver.rolled_back(save_id, timeline, found.samples)
        return found

    def start_trainers(self, back: RolledBack) -> list[Address]:
        """Set the new incarnations up from the save, and have them train; who died meanwhile is found by its watch."""
        save = None if back.save_id is None else SavedAt(self._store.url, self._store.run, back.save_id)
        start = DenseStart(save=save, rollback=True)
        entries = self._directory.all("trainer")
        calls = [(entry, self._setup.start_setup(entry.address.index, back.samples, start)) for entry in entries]
        for entry, call in calls:
            try:
                self._setup.setup_trainer(entry.address.index, call)
            except DIED_TOO:  # its successor must not adopt what it has not set back
                self._launcher.release_memory(entry.node_id, f"trainer-{entry.address.index}/dense")
        with contextlib.suppress(*DIED_TOO):  # as well: it is fed when that one's successor is there
            self._setup.load_center(save)
        for entry in entries:
            if entry.ready:
                self._supervisor.run(entry)
        return [entry.address for entry in entries]

    def _stop_trainers(self) -> list[Entry]:
        """Every trainer's threads have ended; a process whose threads do not is killed, and a new one started."""
        trainers = self._directory.all("trainer")
        stops = {entry.address: entry.actor.end_run.remote() for entry in trainers if entry.actor is not None}
        if stops:
            ray.wait(list(stops.values()), num_returns=len(stops), timeout=_STOP_S)
        return [
            entry if entry.address in stops and _returned(stops[entry.address]) else self._fresh(entry)
            for entry in trainers
        ]

    def _fresh(self, trainer: Entry) -> Entry:
        """A new process for a trainer that died or hangs."""
        self._launcher.confirm_dead(trainer)
        self._directory.remove(trainer.address)
        self._launcher.release_memory(trainer.node_id, f"{trainer.address}/")
        fresh = self._launcher.role("trainer", trainer.address.index, trainer.node_id)
        self._supervisor.watch(fresh)
        return fresh

    def _set_back(self, lost: list[Entry], order: RestoreOrder, trainers: dict[int, int]) -> dict[str, int]:
        """Living shards in place, lost ones in their successors; who dies or hangs meanwhile is lost, too."""
        calls = [
            (entry, None if entry.actor is None else entry.actor.roll_back.remote(order, trainers))
            for entry in self._directory.all("shard")
        ]
        lost, pids = list(lost), dict[str, int]()
        for entry, call in calls:
            try:
                if call is not None:
                    self._setup.patience.wait(call, entry)
                    continue
            except ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, Exception) else error) from error
            except DIED_TOO:
                pass
            self._launcher.confirm_dead(entry)
            self._directory.remove(entry.address)
            lost.append(entry)
        for entry in lost:
            where = self._place(entry)
            self._launcher.release_memory(where, f"shard-{entry.address.index}/")
            found = self._rows.bring(entry, where, order)[0]
            if found.process is not None:
                pids[str(found.address)] = found.process.pid
        return pids

    def _succeed(self, old: Entry, address: Address) -> None:
        """The next incarnation, in the same process."""
        try:
            self._setup.patience.wait(old.actor.become.remote(address), old)
        except DIED_TOO:
            self._fresh(old)
            return
        entry = Entry(address, old.actor, old.node_id, old.process, time.monotonic(), name=old.name)
        self._directory.put(entry)
        self._launcher.release_memory(old.node_id, f"{old.address}/")
        self._supervisor.watch(entry)


def _returned(call: Any) -> bool:
    """Whether a call has ended, and well."""
    try:
        ray.get(call, timeout=0)
    except ray.exceptions.RayError:
        return False
    return True
