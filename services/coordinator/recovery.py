"""Replaces what died: a trainer by a new one on its node, a shard by whoever can adopt its memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import ray

from services.coordinator.directory import Directory, Entry
from services.coordinator.failure_line import failure_line
from services.coordinator.launch import Launcher
from services.coordinator.setup import RunSetup
from services.coordinator.spare_starts import SAID_DELAY_S, SpareStarts
from services.coordinator.supervisor import Supervisor
from services.identity import Address, StaleGenerationError
from services.memory.descriptors import KeeperError
from services.memory.header import HeaderError
from services.memory.process import ProcessIdentity
from services.shard.memory import MarkedUpdate
from services.summary import Failure
from services.trainer.dense_start import MEMORY, DenseStart, SavedAt
from services.transport.shard_client import ShardTarget

DIED_TOO = (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError)
"""The replacement died as well: its watch reports that, so it is not an error here."""

_SPARE_ADOPT_S = 10.0
"""A spare adopts in some hundredths of a second, so one that takes longer hangs."""

_FRESH_HEARTBEATS = 3
_HAND_OVER_S = 10.0


class Recovery:
    """Does what ``RecoveryPolicy`` decided. Called from the run's thread; ``successor`` from others."""

    def __init__(
        self,
        directory: Directory,
        launcher: Launcher,
        supervisor: Supervisor,
        setup: RunSetup,
        start_timeout_s: float,
        heartbeat_s: float,
        say: Callable[[str], None],
        event: Callable[..., None],
        newest: Callable[[], SavedAt | None],
    ) -> None:
        """``newest``: the newest complete save, for trainers that have nobody to copy from."""
        self._directory, self._launcher, self._supervisor, self._setup = directory, launcher, supervisor, setup
        self._start_timeout_s, self._heartbeat_s, self._say, self._event = start_timeout_s, heartbeat_s, say, event
        self._newest = newest
        self._unused: tuple[Entry, Address | None] | None = None  # asked to adopt what is not there
        self._spares = SpareStarts()
        self._serving: dict[int, Entry] = {}  # shards that were replaced and have their rows

    def renew_keeper(self, dead: Entry, failure: Failure) -> Failure:
        """A new keeper of the same name; who lives on the node gives it the memory of both ends of every slab."""
        started, node_id = time.monotonic(), dead.node_id
        entry = self._launcher.keeper(dead.address.index, node_id)
        self._supervisor.watch(entry)
        handed = 0
        try:
            identity = entry.actor.identity.remote()
            entry.process = ProcessIdentity(*ray.get(identity, timeout=self._start_timeout_s))
            entry.ready = True
        except DIED_TOO:
            return failure
        living = [e for e in self._directory.all() if e.node_id == node_id and e is not entry and e.actor is not None]
        calls = [one.actor.hand_over.remote() for one in living]
        for call in calls:
            try:
                handed += ray.get(call, timeout=_HAND_OVER_S)
            except ray.exceptions.RayError as error:  # it died too, or hangs: what it alone mapped is lost with it
                self._event("not_handed_over", error=type(error).__name__)
        seconds = time.monotonic() - started
        failure = failure.model_copy(
            update={"reschedule_s": seconds, "load_s": 0.0, "replay_s": 0.0, "mode": "warm", "pls": 0.0}
        )
        self._say(failure_line(failure, f"{entry.address} was given {handed} regions by those who map them"))
        self._event("renewed", address=str(entry.address), regions=handed, seconds=seconds)
        return failure

    def restart_sync_server(self, dead: Entry, failure: Failure) -> Failure:
        """A new sync server starts from the mean of the trainers' replicas; they train on meanwhile."""
        started = time.monotonic()
        entry = self._launcher.role("sync_server", dead.address.index, dead.node_id)
        self._supervisor.watch(entry)
        try:
            self._setup.load_center(mean=True)
        except DIED_TOO:
            return failure
        seconds = time.monotonic() - started
        failure = failure.model_copy(
            update={"reschedule_s": seconds, "load_s": 0.0, "replay_s": 0.0, "mode": "warm", "pls": 0.0}
        )
        self._say(failure_line(failure, f"{entry.address} starts from the mean of the replicas"))
        self._event("restarted", address=str(entry.address), seconds=seconds)
        return failure

    def _feed_sync_server(self) -> None:
        """One that was restarted while no trainer was there."""
        server = self._directory.get("sync_server", 0)
        if server is not None and not server.ready:
            with contextlib.suppress(ray.exceptions.RayActorError):  # its watch reports that
                self._setup.load_center(mean=True)

    def replace_trainer(
        self, dead: Entry, node_id: str, failure: Failure, requeued_rows: int
    ) -> tuple[Address, Failure]:
        """A new trainer adopts the dense buffer; returns its address, and the failure with what was done."""
        started, trainer_id = time.monotonic(), dead.address.index
        self._launcher.release_memory(dead.node_id, f"{dead.address}/")
        entry = self._launcher.role("trainer", trainer_id, node_id)
        self._supervisor.watch(entry)
        peers = [one.actor for one in self._directory.all("trainer") if one.address.index != trainer_id]
        start = DenseStart(peer=peers[0] if peers else None, save=self._newest())
        try:
            source = self._setup.setup_trainer(
                trainer_id, self._setup.start_setup(trainer_id, failure.at_samples, start)
            )
        except DIED_TOO:
            return entry.address, failure
        self._feed_sync_server()
        self._supervisor.run(entry)
        seconds = time.monotonic() - started
        failure = failure.model_copy(
            update={
                "reschedule_s": seconds,
                "load_s": 0.0,
                "mode": "warm" if source == MEMORY else "partial",
                "pls": 0.0,
            }
        )
        self._say(
            failure_line(
                failure,
                f"{entry.address} took over with dense parameters from {source}, {requeued_rows:,} uncommitted rows "
                "queued again",
            )
        )
        self._event(
            "replaced",
            address=str(entry.address),
            requeued_rows=requeued_rows,
            seconds=seconds,
            adopted=source == MEMORY,
            dense_from=source,
        )
        return entry.address, failure

    def adopt_shard(self, dead: Entry, failure: Failure) -> Failure | None:
        """A spare of the node, or a new process there, goes on with the dead shard's rows: nothing is lost.

        ``None`` when the memory is not there, or not whole: its rows have to come from saves.
        """
        started = time.monotonic()
        entry, spare = self.successor_process(dead, dead.node_id)
        timeout_s = self._start_timeout_s if spare is None else _SPARE_ADOPT_S
        try:
            call = entry.actor.adopt.remote(entry.address)
            process, marked, load_s = self._setup.patience.wait(call, entry, timeout_s)
        except DIED_TOO:
            return failure
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, StaleGenerationError):
                # The former coordinator had it adopted, perhaps by this very process, and died before the state store
                # knew. Nobody was told of that incarnation; the next one is above it.
                self.forget(entry, spare)
                return self.adopt_shard(dead, failure)
            if not isinstance(error.cause, KeeperError | HeaderError):
                raise
            self._event("not_adopted", address=str(entry.address), error=str(error.cause))
            self._unused = (entry, spare)
            return None
        self.serve(entry, spare, process)
        seconds = time.monotonic() - started
        torn = ""
        if marked is not None:
            torn = (
                "; the update it died in was taken back"
                if marked.undone
                else "; the rows of one update may have it twice"
            )
        failure = failure.model_copy(
            update={
                "reschedule_s": max(0.0, seconds - load_s),
                "load_s": load_s,
                "replay_s": 0.0,
                "mode": "warm",
                "pls": 0.0,
            }
        )
        self._say(
            failure_line(
                failure, f"{'a spare' if spare else 'a new process'} adopted its rows as {entry.address}{torn}"
            )
        )
        self._event(
            "adopted",
            address=str(entry.address),
            pid=process[0],
            spare=spare is not None,
            seconds=seconds,
            update_in_flight=marked is not None,
            torn_rows=_torn_rows(marked),
        )
        if spare is not None:
            self.start_spare(spare.index, dead.node_id)
        return failure

    def serve(self, entry: Entry, spare: Address | None, process: tuple[int, int]) -> None:
        """The shard has its rows: trainers may find it. ``spare``: what it was before."""
        entry.process, entry.last_heartbeat_s = ProcessIdentity(*process), time.monotonic()
        entry.ready = True
        if spare is not None:
            self._directory.remove(spare)
        self._serving[entry.address.index] = entry

    def forget(self, entry: Entry, spare: Address | None) -> None:
        """It died before it served: nobody looks for it any more."""
        self._launcher.confirm_dead(entry)
        self._directory.remove(entry.address)
        if spare is not None:
            self._directory.remove(spare)
            self.start_spare(spare.index, entry.node_id)

    def recall(self) -> None:
        """After a restart: shards that had rows have them."""
        self._serving = {entry.address.index: entry for entry in self._directory.all("shard") if entry.ready}

    def start_spare(self, index: int, node_id: str) -> None:
        """Have an idle process ready for the next loss; not waited for."""
        self._spares.started(index, time.monotonic())
        self._supervisor.watch(self._launcher.role("spare", index, node_id))

    def replace_spare(self, index: int, node_id: str) -> None:
        """One died idle: another follows, later each time that they die soon after their start."""
        delay_s = self._spares.died(index, node_id, time.monotonic())
        if delay_s:
            self._event("spare_delayed", index=index, seconds=delay_s)
        if delay_s == SAID_DELAY_S:
            self._say(
                f"spare {index} dies again and again soon after its start: others follow less and less often; "
                "cluster.spare_shards=0 does without"
            )

    def poll(self) -> None:
        """Start the spares that are due."""
        for index, node_id in self._spares.due(time.monotonic()):
            self.start_spare(index, node_id)

    def successor(self, trainer: Address, lost: Address) -> ShardTarget | None:
        """Where a trainer finds the younger incarnation of ``lost``; ``None`` while it has no rows yet."""
        entry, caller = self._serving.get(lost.index), self._directory.get("trainer", trainer.index)
        if entry is None or caller is None or entry.address.generation <= lost.generation:
            return None
        return self._setup.shard_target(entry, caller.node_id)

    def successor_process(self, dead: Entry, node_id: str) -> tuple[Entry, Address | None]:
        """The process for the shard's next incarnation, entered into the directory; the spare it was, if any."""
        shard_id = dead.address.index
        if self._unused is not None and self._unused[0].address.index == shard_id:
            unused, self._unused = self._unused, None
            if self._directory.knows(unused[0].address) and unused[0].node_id == node_id:
                return unused
        for spare in self._directory.all("spare"):
            heard_s = time.monotonic() - spare.last_heartbeat_s  # its first heartbeat follows its imports
            if spare.node_id == node_id and spare.process and heard_s < _FRESH_HEARTBEATS * self._heartbeat_s:
                address = self._directory.next_address("shard", shard_id)
                entry = Entry(address, spare.actor, spare.node_id, spare.process, name=spare.name)
                self._directory.put(entry)
                self._supervisor.watch(entry)
                return entry, spare.address
        entry = self._launcher.role("shard", shard_id, node_id)
        self._supervisor.watch(entry)
        return entry, None


def _torn_rows(marked: MarkedUpdate | None) -> dict[str, int] | None:
    """How many rows of each table may have the update twice; ``None``: not known, any row of any table."""
    if marked is None:
        return {}
    return None if marked.rows is None else {table: len(rows) for table, rows in marked.rows.items()}
