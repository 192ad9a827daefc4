"""Replaces what died: a trainer by a new one on its node, a shard by whoever can adopt its memory."""

from __future__ import annotations

import time
from collections.abc import Callable

import ray

from services.coordinator.directory import Directory, Entry
from services.coordinator.launch import Launcher
from services.coordinator.setup import RunSetup
from services.coordinator.supervisor import Supervisor
from services.identity import Address
from services.memory.process import ProcessIdentity
from services.shard.memory import MarkedUpdate
from services.summary import Failure
from services.transport.shard_client import ShardTarget

_DIED_TOO = (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError)
"""The replacement died as well: its watch reports that, so it is not an error here."""

_SPARE_ADOPT_S = 10.0
"""A spare adopts in some hundredths of a second, so one that takes longer hangs."""

_FRESH_HEARTBEATS = 3


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
    ) -> None:
        self._directory, self._launcher, self._supervisor, self._setup = directory, launcher, supervisor, setup
        self._start_timeout_s, self._heartbeat_s, self._say, self._event = start_timeout_s, heartbeat_s, say, event
        self._serving: dict[int, Entry] = {}  # shards that were replaced and have their rows

    def replace_trainer(self, dead: Entry, failure: Failure, requeued_rows: int) -> tuple[Address, Failure]:
        """A new trainer adopts the dense buffer; returns its address, and the failure with what was done."""
        started, trainer_id = time.monotonic(), dead.address.index
        self._launcher.release_memory(dead.node_id, f"{dead.address}/")
        entry = self._launcher.role("trainer", trainer_id, dead.node_id)
        self._supervisor.watch(entry)
        try:
            adopted = self._setup.setup_trainer(trainer_id, self._setup.start_setup(trainer_id, failure.at_samples))
        except _DIED_TOO:
            return entry.address, failure
        self._supervisor.run(entry)
        seconds = time.monotonic() - started
        self._say(
            f"trainer {trainer_id} died ({failure.cause}); {entry.address} took over in {seconds:.1f} s, "
            f"{requeued_rows:,} uncommitted rows queued again"
        )
        self._event(
            "replaced", address=str(entry.address), requeued_rows=requeued_rows, seconds=seconds, adopted=adopted
        )
        return entry.address, failure.model_copy(
            update={"reschedule_s": seconds, "mode": "warm" if adopted else "partial"}
        )

    def adopt_shard(self, dead: Entry, failure: Failure) -> Failure:
        """A spare of the node, or a new process there, goes on with the dead shard's rows: nothing is lost."""
        started, shard_id = time.monotonic(), dead.address.index
        entry, spare = self._successor_process(dead)
        timeout_s = self._start_timeout_s if spare is None else _SPARE_ADOPT_S
        try:
            process, marked = ray.get(entry.actor.adopt.remote(entry.address), timeout=timeout_s)
        except _DIED_TOO:
            return failure
        except ray.exceptions.GetTimeoutError:
            if spare is None or not self._launcher.confirm_dead(entry):
                raise
            self._directory.remove(spare)  # it hung: the next one, or a new process, takes its place
            return self.adopt_shard(entry, failure)
        entry.process, entry.last_heartbeat_s = ProcessIdentity(*process), time.monotonic()
        if spare is not None:
            self._directory.remove(spare)
        self._serving[shard_id] = entry
        seconds = time.monotonic() - started
        torn = ""
        if marked is not None:
            torn = (
                "; the update it died in was taken back"
                if marked.undone
                else "; the rows of one update may have it twice"
            )
        self._say(
            f"shard {shard_id} died ({failure.cause}); "
            f"{'a spare' if spare else 'a new process'} adopted its rows in {seconds:.2f} s as {entry.address}{torn}"
        )
        self._event(
            "adopted",
            address=str(entry.address),
            pid=entry.process[0],
            spare=spare is not None,
            seconds=seconds,
            update_in_flight=marked is not None,
            torn_rows=_torn_rows(marked),
        )
        if spare is not None:
            self.start_spare(spare.index, dead.node_id)
        return failure.model_copy(update={"reschedule_s": seconds, "mode": "warm", "pls": 0.0})

    def start_spare(self, index: int, node_id: str) -> None:
        """Have an idle process ready for the next loss; not waited for."""
        self._supervisor.watch(self._launcher.role("spare", index, node_id))

    def successor(self, trainer: Address, lost: Address) -> ShardTarget | None:
        """Where a trainer finds the younger incarnation of ``lost``; ``None`` while it has no rows yet."""
        entry, caller = self._serving.get(lost.index), self._directory.get("trainer", trainer.index)
        if entry is None or caller is None or entry.address.generation <= lost.generation:
            return None
        return self._setup.shard_target(entry, caller.node_id)

    def _successor_process(self, dead: Entry) -> tuple[Entry, Address | None]:
        """The process for the shard's next incarnation, entered into the directory; the spare it was, if any."""
        shard_id = dead.address.index
        for spare in self._directory.all("spare"):
            heard_s = time.monotonic() - spare.last_heartbeat_s  # its first heartbeat follows its imports
            if spare.node_id == dead.node_id and spare.process and heard_s < _FRESH_HEARTBEATS * self._heartbeat_s:
                address = self._directory.next_address("shard", shard_id)
                entry = Entry(address, spare.actor, spare.node_id, spare.process)
                self._directory.put(entry)
                self._supervisor.watch(entry)
                return entry, spare.address
        entry = self._launcher.role("shard", shard_id, dead.node_id)
        self._supervisor.watch(entry)
        return entry, None


def _torn_rows(marked: MarkedUpdate | None) -> dict[str, int] | None:
    """How many rows of each table may have the update twice; ``None``: not known, any row of any table."""
    if marked is None:
        return {}
    return None if marked.rows is None else {table: len(rows) for table, rows in marked.rows.items()}
