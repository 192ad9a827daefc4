"""One run from started actors to its summary: what the coordinator does, without the actor around it."""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import ray

from services.config import RunConfig
from services.coordinator.books import NOT_COUNTED, Books, Receipt
from services.coordinator.books_state import BooksState
from services.coordinator.data import prepare_data
from services.coordinator.directory import Directory
from services.coordinator.explain import explain
from services.coordinator.failures import CancelledError, FailureHandler, RunFailedError, failure_of
from services.coordinator.go_on import go_on
from services.coordinator.launch import Launcher
from services.coordinator.nodes import Assignment
from services.coordinator.open_books import open_books
from services.coordinator.open_handler import open_failure_handler
from services.coordinator.open_store import open_store
from services.coordinator.predictions import notices
from services.coordinator.recall import Recalled, coordinator_records, recall_directory
from services.coordinator.recovery import Recovery
from services.coordinator.run_files import RunFiles
from services.coordinator.run_memory import RunMemory, open_memory
from services.coordinator.run_saves import RunSaves
from services.coordinator.save_round import Saved
from services.coordinator.setup import PlacedTables, PreparedData, RunSetup, place_tables
from services.coordinator.shard_counts import ShardCounts, shard_stats
from services.coordinator.snapshot import described_stage, snapshot
from services.coordinator.summarize import summarize, versions
from services.coordinator.supervisor import Death, Finished, Supervisor
from services.coordinator.work_queue import RowCounts
from services.faults.phase_board import open_phase_board
from services.identity import Address
from services.placement_report import PlacementReport
from services.progress import Progress
from services.shard.restoring import RestoreOrder
from services.state.record import Record
from services.summary import Failure, State
from services.trainer.dense_start import DenseStart
from services.transport.errors import ShardUnavailableError
from services.transport.shard_client import ShardTarget
from trainer.data.block import RejectedLine
from trainer.data.split import Lease
from trainer.ledger import Report

_POLL_S = 0.25
_METRICS_S = 1.0
_ROOT_CAUSE_S = 5.0
_STOP_S = 10.0


class RunControl:
    """Owns a run. Calls of role actors and of the driver come from other threads than ``run``."""

    def __init__(
        self,
        config: RunConfig,
        run_id: str,
        run_directory: str,
        started_s: float,
        directory: Directory,
        launcher: Launcher,
        assignment: Assignment,
        lock: threading.RLock,
        resume: bool = False,
        recalled: Callable[[], None] | None = None,
    ) -> None:
        """``directory`` is shared with the actor, under ``lock``; ``started_s``: the driver's clock when it began.

        ``resume``: go on from the newest consistent save. ``recalled``: given when the coordinator died and was started
        again; called once the living actors are known.
        """
        self._resume, self._recalled = resume, recalled
        self._memory: RunMemory | None = None
        self._deaths: list[Death] = []
        self._started_samples, self._total_samples, self._noted_s = 0, 0, 0.0
        self._config, self._run_id = config, run_id
        self._started_s = started_s - time.time() + time.monotonic()
        self._directory, self._launcher, self._assignment, self._lock = directory, launcher, assignment, lock
        self._files = RunFiles(run_directory)
        self._phases = open_phase_board(launcher.board, "coordinator", 0, 1)
        self._supervisor = Supervisor(directory, config.failure.heartbeat_timeout_s)
        self._books: Books | None = None
        self._stage = "starting actors"
        self._messages: list[str] = []
        self._placement: PlacementReport | None = None
        self._early_failures: list[Failure] = []
        self._handler: FailureHandler | None = None
        self._saves: RunSaves | None = None
        self._cancelled: str | None = None
        self._trainer_stats: dict[Address, dict[str, Any]] = {}
        self._driver_seen_s = time.monotonic()
        self._shard_counts: ShardCounts | None = None
        self._running: set[Address] = set()  # trainers whose run has not ended
        self._ends: deque[Finished] = deque()

    # ---- called by the driver -------------------------------------------------------------------------------------

    def run(self) -> str:
        """The whole run; returns its summary as JSON (also on failure)."""
        state: State = "FAILED"
        error: str | None = None
        self._event("started", run=self._config.name, run_id=self._run_id, versions=versions())
        try:
            try:
                self._start()
            except ray.exceptions.RayActorError:
                self._explain_early_death()
                raise
            self._train()
            while self._saves is not None:  # who dies meanwhile is replaced, and may bring everybody back to a save
                self._stage = "saving"
                self._saves.at_end("the run is done", self._mend)
                if self._books is not None and self._books.done:
                    break
                self._go_on()
            state = "SUCCEEDED"
        except CancelledError as cancelled:
            state, error = "CANCELLED", str(cancelled)
            if self._saves is not None and self._books is not None:
                with contextlib.suppress(RunFailedError):  # it is said
                    self._saves.at_end(str(cancelled))
        except Exception as failed:  # whatever it is, the run ends with a record of it
            error = explain(failed)
            self._event("failed", error=error, traceback=traceback.format_exc())
        if self._saves is not None:
            self._saves.saver.close()
        if self._memory is not None:
            self._memory.close(state, error)
        last_stats = shard_stats(self._directory, _STOP_S) if state != "FAILED" else None
        self._launcher.end_all()
        books = self._books
        if books is not None:
            books.close()
        summary = summarize(
            self._config,
            state,
            error,
            counts=books.counts if books else RowCounts(),
            accounts=books.accounts if books else None,
            shard_stats=last_stats,
            started_s=self._started_s,
            ended_s=time.monotonic(),
            trainer_stats=list(self._trainer_stats.values()),
            failures=self._handler.failures if self._handler else self._early_failures,
            checkpoint=self._saves.saver.summary if self._saves else None,
            pls=self._saves.pls if self._saves else None,
            lost_samples=round(self._saves.pls.spent * self._total_samples) if self._saves else 0,
            started_samples=self._started_samples,
            rolled_back_samples=self._handler.rolled_back_samples if self._handler else 0,
            predictions=books.predictions.summary() if books and books.predictions else None,
        )
        try:
            summary.write(self._files.directory / "summary.json")
        except OSError as unwritable:  # the command prints it all the same
            self._say(f"summary.json could not be written: {unwritable}")
        self._event("ended", state=state, error=error)
        return summary.to_json()

    def driver_alive(self) -> None:
        """A sign of life of the command that started the run."""
        self._driver_seen_s = time.monotonic()

    def progress(self) -> Progress:
        """A snapshot for the live display."""
        with self._lock:
            messages, self._messages = self._messages, []
            placement, self._placement = self._placement, None
            alive = [len(self._directory.all(role)) for role in ("trainer", "shard")]
        return snapshot(
            self._books,
            "STOPPING" if self._cancelled else "RUNNING" if self._books else "STARTING",
            described_stage(self._stage, self._books, self._config.train.epochs, self._total_samples),
            self._total_samples,
            list(self._trainer_stats.values()),
            alive,
            messages + self._files.take_alarms(),
            placement,
        )

    def cancel(self, why: str) -> None:
        """Stop cleanly: the summary says CANCELLED."""
        self._cancelled = why

    # ---- called by role actors ------------------------------------------------------------------------------------

    def alive(self, address: Address, stats: dict[str, Any]) -> None:
        """Counters that came with a heartbeat."""
        if stats and address.role == "trainer":
            self._trainer_stats[address] = stats
        elif address.role == "shard" and self._shard_counts is not None:
            self._shard_counts.note(address.index, stats)

    def lease(self, trainer: Address) -> Lease | Literal["wait", "done"]:
        """The next split for a trainer."""
        if self._cancelled:
            return "done"
        if self._books is None:  # readers start before the last trainer is set up
            return "wait"
        lease = self._books.lease(trainer)
        if isinstance(lease, Lease) and self._memory is not None:
            self._memory.keep_lease(lease.lease_id)
        return lease

    def report(self, trainer: Address, number: int, report: Report, rejected: list[RejectedLine]) -> Receipt:
        """What a trainer did since its last report; without books it is to be sent again."""
        return self._books.report(trainer, number, report, rejected) if self._books else NOT_COUNTED

    def successor(self, trainer: Address, lost: Address) -> ShardTarget | None:
        """The younger incarnation of a lost shard, once it serves; trainers ask also while this one starts again."""
        return self._handler.successor(trainer, lost) if self._handler else None

    def sync_server(self, trainer: Address) -> Any | None:
        """The living sync server."""
        entry = self._directory.get("sync_server", 0)
        return entry.actor if entry and entry.ready and self._knows(trainer) else None

    # ---- the run --------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        config = self._config
        self._memory = open_memory(
            config, self._files, self._directory, self._lock, self._event, self._say, self._launcher.board
        )
        recalled = None if self._recalled is None else self._recall(self._recalled)
        store, going_on = open_store(config, self._files.directory), None
        if self._resume and recalled is None:
            going_on = go_on(store, config.train.batch_size, self._event, self._say)
            self._started_samples = going_on.state.samples
        for entry in self._directory.all():
            if entry.actor is not None:  # else it died while there was no coordinator
                self._supervisor.watch(entry)
        self._enter_stage("reading data")
        data = prepare_data(config, self._files.directory, going_on.state.readers if going_on else None)
        self._check()
        self._enter_stage("placing tables")
        placed = place_tables(config, data.encoders.rows, self._assignment)
        self._event("placed", **placed.report.model_dump())
        self._placement = placed.report
        if config.checkpoint.enabled:
            self._saves = RunSaves(
                config,
                self._files.directory,
                placed,
                self._assignment,
                self._directory,
                lambda: self._books,
                lambda: self._total_samples,
                lambda: bool(self._running) and self._books is not None,
                self._event,
                self._say,
                self._note_saved,
                store,
                going_on,
                self._phases.enter,
            )
        self._prepare(data, placed, recalled)
        if self._memory is not None and recalled is None:
            self._memory.start(lambda: self._books, self._records, fresh=True)

    def _recall(self, known: Callable[[], None]) -> Recalled:
        """The former coordinator's state; its actors, those that live, are known again."""
        found = None if self._memory is None else self._memory.recall()
        if found is None:
            raise RunFailedError("the coordinator died before training began, or nothing is left of its state")
        with self._lock:
            self._deaths = recall_directory(self._directory, self._launcher, found.roles)
        known()
        return found

    def _records(self) -> list[Record]:
        assert self._handler is not None
        return coordinator_records(self._run_id, self._total_samples, self._started_samples, self._saves, self._handler)

    def _prepare(self, data: PreparedData, placed: PlacedTables, recalled: Recalled | None) -> None:
        config = self._config
        self._check()
        total = data.plan.train_rows * config.train.epochs
        self._setup = RunSetup(config, self._run_id, self._directory, self._launcher, data, placed, total)
        self._recovery = Recovery(
            self._directory,
            self._launcher,
            self._supervisor,
            self._setup,
            config.failure.startup_timeout_s,
            config.failure.heartbeat_s,
            self._say,
            self._event,
            lambda: self._saves.newest() if self._saves else None,
        )
        self._total_samples = total
        self._shard_counts = ShardCounts(total)
        self._data = data
        if recalled is not None:
            self._take_over(placed, recalled)
            return
        start_from = self._saves.start_from if self._saves else None
        save, state = (start_from.save, start_from.state) if start_from else (None, None)
        order = None if save is None else RestoreOrder(save.url, save.run, save.save_id)
        self._enter_stage("loading rows")
        self._setup.load_shards(order)
        self._event(
            "loaded",
            pids={str(entry.address): entry.process[0] for entry in self._directory.all("shard") if entry.process},
        )
        self._event("data", train_rows=data.plan.train_rows, eval_rows=data.plan.eval_rows)
        held_out = "the latest in time" if config.data.eval is None else "from data.eval"
        self._say(f"{data.plan.train_rows:,} training rows; {data.plan.eval_rows:,} held out, {held_out}")
        for notice in notices(data.predict, config) if data.predict else ():
            self._say(notice)
        if len(data.plan.train) < config.cluster.trainers:
            self._say(
                f"the training rows come in {len(data.plan.train)} splits for {config.cluster.trainers} trainers "
                "(a gzip file cannot be cut): some trainers stay idle; use plain files, Parquet, or more of them"
            )
        self._enter_stage("setting up trainers")
        trained = state.samples if state else 0
        calls = {
            entry.address.index: self._setup.start_setup(entry.address.index, trained, DenseStart(save=save))
            for entry in self._directory.all("trainer")
        }
        for trainer_id, call in calls.items():
            self._setup.setup_trainer(trainer_id, call)
        self._setup.load_center(save)
        self._books = open_books(config, data, self._files, self._knows, state.books if state else None)
        self._handler = self._failure_handler(placed)
        self._event("stage", stage=self._books.stage)
        for entry in self._directory.all("trainer"):
            self._supervisor.run(entry)

    def _take_over(self, placed: PlacedTables, recalled: Recalled) -> None:
        """Go on where the former coordinator died; trainers and shards did not wait for it."""
        record = recalled.coordinator
        self._started_samples = record.started_samples
        self._recovery.recall()
        if self._saves is not None:
            self._saves.recall(record, recalled.pls)
        books = open_books(self._config, self._data, self._files, self._knows, recalled.splits.books)
        books.recall(recalled.splits)
        self._handler = self._failure_handler(placed)
        self._handler.recall(record.failures, record.rolled_back_samples, record.rolling_back)
        for entry in self._directory.all("trainer"):
            if entry.actor is not None:
                self._supervisor.rejoin(entry)
        self._handler.note_coordinator(books.counts.trained)
        self._event("stage", stage=books.stage)
        if self._memory is not None:
            self._memory.start(lambda: self._books, self._records, fresh=False)
        self._books = books  # from now on leases are given out, which the store has to know

    def _failure_handler(self, placed: PlacedTables) -> FailureHandler:
        assert self._shard_counts is not None
        return open_failure_handler(
            self._config,
            self._directory,
            self._launcher,
            self._supervisor,
            self._setup,
            self._recovery,
            self._saves,
            placed,
            self._assignment,
            self._shard_counts,
            self._total_samples,
            lambda: self._books,
            self._renew_books,
            self._retire_books,
            self._memory.keep if self._memory else lambda: None,
            self._running,
            self._event,
            self._say,
        )

    def _retire_books(self) -> None:
        """What is reported from now on does not count: everybody goes back to a save."""
        books, self._books = self._books, None
        if books is not None:
            books.close()

    def _renew_books(self, state: BooksState | None) -> None:
        self._books = open_books(self._config, self._data, self._files, self._knows, state)

    def _knows(self, address: Address) -> bool:
        with self._lock:
            return self._directory.knows(address)

    def _explain_early_death(self) -> None:
        """A call failed before training began: nothing was trained, so the run ends, naming who died."""
        for death in self._supervisor.poll(_ROOT_CAUSE_S)[0]:
            address = death.entry.address
            self._event("death", address=str(address), cause=death.cause, action="fail", detect_s=death.detect_s)
            self._early_failures.append(failure_of(death))
            raise RunFailedError(f"{address.role} {address.index}: {death.cause} during {self._stage}")

    def _train(self) -> None:
        assert self._handler is not None
        self._running.update(entry.address for entry in self._directory.all("trainer"))
        if self._saves is not None:
            self._saves.start()
        self._handler.take_over(self._deaths)
        self._go_on()

    def _mend(self, seconds: float) -> None:
        assert self._handler is not None
        deaths, finished = self._supervisor.poll(seconds)
        self._check()
        self._ends.extend(finished)
        for death in deaths:
            self._handler.handle(death)
        self._handler.poll()

    def _go_on(self) -> None:
        while self._running:
            self._mend(_POLL_S)
            self._note_progress()
            while self._ends:
                self._handle_end(self._ends.popleft())
        self._check()
        if self._books is None or not self._books.done:
            raise RunFailedError("every trainer ended, but rows are still uncommitted")
        self._stage = "finishing"
        self._books.settle()

    def _note_saved(self, saved: Saved) -> None:
        if self._shard_counts is not None:
            self._shard_counts.saved(saved.pending_accesses)
        if self._memory is not None:
            self._memory.saved(saved)

    def _note_progress(self) -> None:
        """A line of ``metrics.jsonl`` every second."""
        books, now = self._books, time.monotonic()
        if books is None or now - self._noted_s < _METRICS_S:
            return
        self._noted_s = now
        speed, loss = books.recent()
        self._files.metrics(
            at_samples=books.counts.trained,
            throughput_samples_per_s=speed,
            logloss_recent=loss.logloss,
            ne_recent=loss.ne,
        )

    def _handle_end(self, end: Finished) -> None:
        """A trainer returned or raised."""
        address = end.entry.address
        if not self._knows(address):  # replaced meanwhile: what it ended with concerns nobody
            return
        if end.error is None:
            self._trainer_stats[address] = end.result
            self._running.discard(address)
            return
        if isinstance(end.error, (ray.exceptions.RayActorError, ShardUnavailableError)):
            deadline = time.monotonic() + _ROOT_CAUSE_S  # it, or what it called, died: a watch tells who
            while self._knows(address) and time.monotonic() < deadline:
                self._mend(_POLL_S)
            if not self._knows(address):
                return
        raise RunFailedError(f"{address}: {explain(end.error)}")

    def _check(self) -> None:
        """Leave when the run was cancelled, has failed, or lost its driver."""
        if self._books is not None and self._books.fatal is not None:
            raise self._books.fatal
        if self.driver_gone and not self._cancelled:
            self._cancelled = "the command that started the run is gone"
        if self._cancelled:
            stops = [entry.actor.stop.remote() for entry in self._directory.all("trainer")]
            ray.wait(stops, num_returns=len(stops), timeout=_STOP_S) if stops else None
            deadline = time.monotonic() + _STOP_S
            while self._supervisor.running and time.monotonic() < deadline:
                for end in self._supervisor.poll(_POLL_S)[1]:
                    if end.error is None:
                        self._trainer_stats[end.entry.address] = end.result
            raise CancelledError(self._cancelled)

    @property
    def driver_gone(self) -> bool:
        """The command that started the run has given no sign of life for ``failure.lease_s``."""
        return time.monotonic() - self._driver_seen_s > self._config.failure.lease_s

    def _enter_stage(self, stage: str) -> None:
        self._stage = stage
        self._event("stage", stage=stage)

    def _say(self, message: str) -> None:
        with self._lock:
            self._messages.append(message)

    def _event(self, kind: str, **fields: Any) -> None:
        self._files.event(kind, **fields)
