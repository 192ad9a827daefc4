"""What a restarted coordinator must know, kept in the state store from a thread of its own."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Literal

import ray

from services.config import RunConfig
from services.config_file import dump_config
from services.coordinator.books import Books
from services.coordinator.directory import Directory, Entry
from services.coordinator.recall import Recalled
from services.coordinator.run_files import RunFiles
from services.coordinator.save_round import Saved
from services.faults.phase_board import open_phase_board
from services.memory.process import identify
from services.state.coordinator_records import CoordinatorRecord
from services.state.errors import StateDirectoryInUseError, StateStoreUnavailableError
from services.state.mirror import StateMirror, StoreChange
from services.state.quality_records import PlsRecord, SaveRecord
from services.state.record import Record
from services.state.run_records import EventRecord, HeartbeatRecord, RoleRecord, RunRecord
from services.state.store import StateStore
from services.state.work_records import SplitsRecord

_EVERY_S = 0.2
_FLUSH_S = 1.0
_LEASE_WAIT_S = 0.5


class RunMemory:
    """Writes records when they change. The store may be away: training does not wait for it."""

    def __init__(
        self,
        config: RunConfig,
        directory: str,
        actors: Directory,
        lock: threading.RLock,
        event: Callable[..., None],
        say: Callable[[str], None],
        board: str | None = None,
    ) -> None:
        """``board``: where faults on purpose find a private server.

        Raises ``StateStoreUnavailableError`` when a private server cannot be started."""
        self._store = StateStore.open(config.state.redis_url, config.name, directory)
        self._actors, self._lock, self._event, self._say = actors, lock, event, say
        self._board, self._server_pid = board, 0
        self._beats_at = 0.0
        self._beat_ttl_s = 2 * config.failure.heartbeat_timeout_s
        self._run = RunRecord(
            run=config.name,
            state="RUNNING",
            timeline=0,
            config_hash=hashlib.sha256(dump_config(config).encode()).hexdigest(),
            started_unix_s=time.time(),
            coordinator=identify(),
            coordinator_node_id=ray.get_runtime_context().get_node_id(),
        )
        self._written: dict[str, Record] = {}
        self._wake, self._closed = threading.Event(), threading.Event()
        self._kept = threading.Condition()
        self._kept_lease = 0
        self._books: Callable[[], Books | None] = lambda: None
        self._others: Callable[[], Iterable[Record]] = tuple
        self._mirror: StateMirror | None = None
        self._thread = threading.Thread(target=self._keep, name="run-memory", daemon=True)

    def recall(self) -> Recalled | None:
        """What the former coordinator left; ``None``: not enough to go on with.

        Raises:
            StateStoreUnavailableError: the store is away.
            UnreadableRecordError: another version wrote it.
        """
        coordinator, splits = self._store.get(CoordinatorRecord), self._store.get(SplitsRecord)
        if coordinator is None or splits is None or not coordinator.record.training:
            return None
        pls = self._store.get(PlsRecord)
        roles = self._store.find(RoleRecord)
        return Recalled(coordinator.record, roles, splits.record, None if pls is None else pls.record)

    def last_event(self) -> int:
        """Sequence of the newest event there; 0 for none, or while the store is away."""
        try:
            return self._store.last_event()
        except StateStoreUnavailableError:
            return 0

    def start(self, books: Callable[[], Books | None], others: Callable[[], Iterable[Record]], *, fresh: bool) -> None:
        """Begin to write. ``others``: records of the saver and the failures. ``fresh``: nothing old counts."""
        self._books, self._others = books, others
        if fresh:
            try:
                self._store.clear()
            except StateStoreUnavailableError as error:
                self._changed(StoreChange("away", str(error)))
        self._mirror = StateMirror(self._store, self._changed)
        self._thread.start()
        if not fresh:  # this death of the coordinator counts, however soon the next one follows
            self.keep()

    def append(self, event: EventRecord) -> None:
        """One more event of the run."""
        if self._mirror is not None:
            self._mirror.append(event)

    def saved(self, saved: Saved) -> None:
        """A save is complete."""
        manifest = saved.manifest
        if self._mirror is not None:
            self._mirror.put(
                SaveRecord(
                    save_id=manifest.save_id,
                    save_kind=manifest.kind,
                    consistent=manifest.consistent,
                    timeline=manifest.timeline,
                    sequence=manifest.sequence,
                    parent=manifest.parent,
                    samples=manifest.samples,
                    bytes=saved.bytes,
                    committed_unix_s=manifest.created_unix_s,
                )
            )

    def keep_lease(self, lease_id: int) -> None:
        """Have a lease that was just given out in the store before anybody works on it, if the store answers."""
        if self._mirror is None or self._mirror.away:
            return
        self._wake.set()
        with self._kept:
            self._kept.wait_for(lambda: self._kept_lease >= lease_id, _LEASE_WAIT_S)

    def keep(self) -> None:
        """Have what the coordinator knows now in the store, if that answers."""
        if self._mirror is None or self._mirror.away:
            return
        with contextlib.suppress(Exception):  # whatever ended the mirror, training goes on
            for record in self._others():
                self._mirror.put(record)
            self._mirror.flush(_FLUSH_S)

    def close(self, state: Literal["SUCCEEDED", "FAILED", "CANCELLED"], error: str | None) -> None:
        """Write the last state and end."""
        self._run = self._run.model_copy(update={"state": state, "error": error})
        self._closed.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._mirror is not None:
            self._mirror.close()
        self._store.close()

    def _keep(self) -> None:
        while not self._closed.is_set():
            self._wake.wait(_EVERY_S)
            self._wake.clear()
            self._write()
        self._write()  # how it ended

    def _write(self) -> None:
        assert self._mirror is not None
        self._note_server()
        with self._lock:
            roles = [_role(entry) for entry in self._actors.all()]
        self._write_heartbeats()
        for record in (self._run, *roles, *self._others()):
            key = f"{record.kind}:{record.name}"
            if self._written.get(key) != record:
                self._written[key] = record
                self._mirror.put(record)
        known = {record.name for record in roles}
        for key, written in self._written.items():
            if isinstance(written, RoleRecord) and written.state != "GONE" and written.name not in known:
                self._written[key] = gone = written.model_copy(update={"state": "GONE"})
                self._mirror.put(gone)
        books = self._books()
        if books is None:
            return
        splits = books.record()
        self._mirror.put(splits)
        if self._mirror.flush(_FLUSH_S):
            books.durable(splits)
            with self._kept:
                self._kept_lease = splits.next_lease_id - 1
                self._kept.notify_all()

    def _write_heartbeats(self) -> None:
        """Copies for people and other programs, once a second; they expire."""
        now = time.monotonic()
        if self._mirror is None or now - self._beats_at < 1.0:
            return
        self._beats_at = now
        with self._lock:
            heard = [entry for entry in self._actors.all() if entry.last_heartbeat_s and entry.process is not None]
        for entry in heard:
            assert entry.process is not None
            beat = HeartbeatRecord(
                role=entry.address.role,
                index=entry.address.index,
                generation=entry.address.generation,
                node_id=entry.node_id,
                process=entry.process,
                at_unix_s=time.time() - (now - entry.last_heartbeat_s),
            )
            self._mirror.put(beat, ttl_s=self._beat_ttl_s)

    def _note_server(self) -> None:
        server = self._store.embedded
        if server is not None and server.pid is not None and server.pid != self._server_pid:
            with contextlib.suppress(ProcessLookupError):  # it died since; its successor is noted
                open_phase_board(self._board, "state_store", 0, 1, pid=server.pid)
                self._server_pid = server.pid

    def _changed(self, change: StoreChange) -> None:
        self._event(
            "state_store",
            state=change.state,
            detail=change.detail,
            seconds=change.seconds,
            dropped_events=change.dropped_events,
        )
        if change.state == "away":
            self._say(f"the state store is away, training goes on: {change.detail}")
        elif change.state == "back":
            self._say(f"the state store is back after {change.seconds:.1f} s; {change.detail}")
        else:
            self._say(f"the state store: {change.detail}")


def _role(entry: Entry) -> RoleRecord:
    return RoleRecord(
        role=entry.address.role,
        index=entry.address.index,
        generation=entry.address.generation,
        state="ALIVE" if entry.ready else "STARTING",
        node_id=entry.node_id,
        handle=entry.name,
        process=entry.process,
    )


def open_memory(
    config: RunConfig,
    files: RunFiles,
    actors: Directory,
    lock: threading.RLock,
    event: Callable[..., None],
    say: Callable[[str], None],
    board: str | None,
) -> RunMemory | None:
    """``None``: there is no store, so a death of the coordinator would end the run; training does not need it."""
    try:
        memory = RunMemory(config, str(files.directory), actors, lock, event, say, board)
    except (StateStoreUnavailableError, StateDirectoryInUseError) as error:
        event("state_store", state="away", detail=str(error))
        say(f"there is no state store, so a death of the coordinator would end the run: {error}")
        return None
    files.sequence = memory.last_event()
    files.on_event = memory.append
    return memory
