"""One run from started actors to its summary: what the coordinator does, without the actor around it."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from typing import Any, Literal

import ray

from checkpoint.policy import FailureEvent, FailureHistory, RecoveryPolicy
from services.config import RunConfig
from services.coordinator.accounts import TooManyBadError
from services.coordinator.books import Books
from services.coordinator.data import prepare_data
from services.coordinator.directory import Directory, Entry
from services.coordinator.launch import Launcher
from services.coordinator.nodes import Assignment
from services.coordinator.open_books import open_books
from services.coordinator.predictions import PredictionsError, notices
from services.coordinator.recovery import Recovery
from services.coordinator.run_files import RunFiles
from services.coordinator.setup import PlacedTables, PreparedData, RunSetup, place_tables
from services.coordinator.summarize import summarize, versions
from services.coordinator.supervisor import Death, Finished, Supervisor
from services.coordinator.work_queue import RowCounts
from services.identity import Address
from services.placement_report import PlacementReport
from services.progress import Progress
from services.summary import Failure, State
from services.transport.errors import ShardUnavailableError
from services.transport.shard_client import ShardTarget
from trainer.data.block import RejectedLine
from trainer.data.split import Lease
from trainer.ledger import Report

_POLL_S = 0.25
_ROOT_CAUSE_S = 5.0
_STOP_S = 10.0


def explain(error: Exception) -> str:
    """One readable line or block: what an actor's call failed with, without Ray's remote traceback."""
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    text = str(cause) or repr(cause)
    own = isinstance(cause, (RunFailedError, TooManyBadError, PredictionsError, ValueError, ShardUnavailableError))
    return text if own else f"{type(cause).__name__}: {text}"


class RunFailedError(RuntimeError):
    """The run cannot go on; the message goes into its summary."""


class CancelledError(RuntimeError):
    """The run was told to stop."""


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
    ) -> None:
        """``directory`` is shared with the actor, under ``lock``; ``started_s``: the driver's clock when it began."""
        self._config, self._run_id = config, run_id
        self._started_s = started_s - time.time() + time.monotonic()
        self._directory, self._launcher, self._assignment, self._lock = directory, launcher, assignment, lock
        self._files = RunFiles(run_directory)
        self._supervisor = Supervisor(directory, config.failure.heartbeat_timeout_s)
        self._books: Books | None = None
        self._stage = "starting actors"
        self._messages: list[str] = []
        self._placement: PlacementReport | None = None
        self._failures: list[Failure] = []
        self._cancelled: str | None = None
        self._trainer_stats: dict[Address, dict[str, Any]] = {}
        self._driver_seen_s = time.monotonic()
        self._total_samples = 0
        self._replacements = 0
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
            state = "SUCCEEDED"
        except CancelledError as cancelled:
            state, error = "CANCELLED", str(cancelled)
        except Exception as failed:  # whatever it is, the run ends with a record of it
            error = explain(failed)
            self._event("failed", error=error, traceback=traceback.format_exc())
        shard_stats = self._shard_stats() if state != "FAILED" else None
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
            shard_stats=shard_stats,
            started_s=self._started_s,
            ended_s=time.monotonic(),
            trainer_stats=list(self._trainer_stats.values()),
            failures=self._failures,
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
        books = self._books
        accounts = books.accounts if books else None
        speed, loss = books.recent() if books else (0.0, None)
        phases: dict[str, float] = {}
        for stats in list(self._trainer_stats.values()):
            for phase, seconds in stats.get("phases", {}).items():
                phases[phase] = phases.get(phase, 0.0) + seconds
        busy = sum(phases.values())
        last = accounts.evaluations[-1].metrics if accounts and accounts.evaluations else None
        predictions = books.predictions if books else None
        with self._lock:
            messages, self._messages = self._messages, []
            placement, self._placement = self._placement, None
            alive = [len(self._directory.all(role)) for role in ("trainer", "shard")]
        messages += self._files.take_alarms() + (books.take_messages() if books else [])
        return Progress(
            state="STOPPING" if self._cancelled else "RUNNING" if books else "STARTING",
            stage=self._described_stage(),
            samples=books.counts.trained if books else 0,
            total_samples=self._total_samples,
            predicted_rows=predictions.rows_done if predictions else 0,
            total_predicted_rows=predictions.total_rows if predictions else 0,
            throughput_samples_per_s=predictions.rows_per_s if predictions and predictions.rows_done else speed,
            loss=loss.logloss if loss else None,
            ne=loss.ne if loss else None,
            auc=last.auc if last else None,
            phases={phase: seconds / busy for phase, seconds in phases.items()} if busy else {},
            trainers=alive[0],
            shards=alive[1],
            messages=tuple(messages),
            placement=placement,
        )

    def cancel(self, why: str) -> None:
        """Stop cleanly: the summary says CANCELLED."""
        self._cancelled = why

    # ---- called by role actors ------------------------------------------------------------------------------------

    def trainer_alive(self, address: Address, stats: dict[str, Any]) -> None:
        """Counters that came with a trainer's heartbeat."""
        if stats:
            self._trainer_stats[address] = stats

    def lease(self, trainer: Address) -> Lease | Literal["wait", "done"]:
        """The next split for a trainer."""
        if self._cancelled:
            return "done"
        if self._books is None:  # readers start before the last trainer is set up
            return "wait"
        return self._books.lease(trainer)

    def report(self, trainer: Address, number: int, report: Report, rejected: list[RejectedLine]) -> int:
        """What a trainer did since its last report; returns the samples that the others have committed."""
        return self._books.report(trainer, number, report, rejected) if self._books else 0

    def successor(self, trainer: Address, lost: Address) -> ShardTarget | None:
        """The younger incarnation of a lost shard, once it serves."""
        return self._recovery.successor(trainer, lost)

    # ---- the run --------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        config = self._config
        for entry in self._directory.all():
            self._supervisor.watch(entry)
        self._enter_stage("reading data")
        data = prepare_data(config, self._files.directory)
        self._check()
        self._enter_stage("placing tables")
        placed = place_tables(config, data.encoders.rows, self._assignment)
        self._event("placed", **placed.report.model_dump())
        self._placement = placed.report
        self._prepare(data, placed)

    def _prepare(self, data: PreparedData, placed: PlacedTables) -> None:
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
        )
        self._enter_stage("loading rows")
        self._setup.load_shards()
        self._event("loaded", pids={str(entry.address): entry.process[0] for entry in self._shards() if entry.process})
        self._total_samples = total
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
        calls = {entry.address.index: self._setup.start_setup(entry.address.index) for entry in self._trainers()}
        for trainer_id, call in calls.items():
            self._setup.setup_trainer(trainer_id, call)
        self._setup.load_center()
        self._books = open_books(config, data, self._files, self._knows)
        self._event("stage", stage=self._books.stage)
        for entry in self._trainers():
            self._supervisor.run(entry)

    def _knows(self, address: Address) -> bool:
        with self._lock:
            return self._directory.knows(address)

    def _explain_early_death(self) -> None:
        """A call failed before training began: nothing was trained, so the run ends, naming who died."""
        for death in self._supervisor.poll(_ROOT_CAUSE_S)[0]:
            address = death.entry.address
            self._event("death", address=str(address), cause=death.cause, action="fail", detect_s=death.detect_s)
            self._failures.append(
                Failure(
                    role=address.role, index=address.index, cause=death.cause, at_samples=0, detect_s=death.detect_s
                )
            )
            raise RunFailedError(f"{address.role} {address.index}: {death.cause} during {self._stage}")

    def _train(self) -> None:
        assert self._books is not None
        self._running = {entry.address for entry in self._trainers()}
        while self._running:
            deaths, finished = self._supervisor.poll(_POLL_S)
            self._check()
            for death in deaths:
                self._handle(death)
            self._ends.extend(finished)
            while self._ends:
                self._handle_end(self._ends.popleft())
        self._check()
        if not self._books.done:
            raise RunFailedError("every trainer ended, but rows are still uncommitted")
        self._stage = "finishing"
        self._books.settle()

    def _handle(self, death: Death) -> None:
        """A death: record it, decide, act."""
        entry, address = death.entry, death.entry.address
        confirmed = self._launcher.confirm_dead(entry)  # a hung process must not come back beside its successor
        with self._lock:
            self._directory.remove(address)
        self._running.discard(address)
        samples = self._books.counts.trained if self._books else 0
        held = confirmed and self._launcher.holds_memory(entry.node_id)
        event = FailureEvent(address.role, address.index, address.generation, death.cause, samples, held)
        decision = RecoveryPolicy().decide(event, FailureHistory(self._replacements, self._config.failure.max_failures))
        self._event("death", address=str(address), cause=death.cause, action=decision.action, detect_s=death.detect_s)
        failure = Failure(
            role=address.role,
            index=address.index,
            cause=death.cause,
            at_samples=samples,
            detect_s=death.detect_s,
        )
        if decision.action == "fail":
            self._failures.append(failure)
            raise RunFailedError(decision.reason)
        if decision.action == "ignore":
            self._recovery.start_spare(address.index, entry.node_id)
            return
        self._replacements += 1
        if decision.action == "adopt":
            self._failures.append(self._recovery.adopt_shard(entry, failure))
            return
        rows = self._books.requeue(address.index) if self._books else 0
        successor, failure = self._recovery.replace_trainer(entry, failure, rows)
        self._failures.append(failure)
        self._running.add(successor)

    def _handle_end(self, end: Finished) -> None:
        """A trainer returned or raised."""
        address = end.entry.address
        if end.error is None:
            self._trainer_stats[address] = end.result
            self._running.discard(address)
            return
        if isinstance(end.error, (ray.exceptions.RayActorError, ShardUnavailableError)):
            deadline = time.monotonic() + _ROOT_CAUSE_S  # it, or what it called, died: a watch tells who
            while self._knows(address) and time.monotonic() < deadline:
                deaths, finished = self._supervisor.poll(_POLL_S)
                self._ends.extend(finished)
                for death in deaths:
                    self._handle(death)
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
            stops = [entry.actor.stop.remote() for entry in self._trainers()]
            ray.wait(stops, num_returns=len(stops), timeout=_STOP_S) if stops else None
            deadline = time.monotonic() + _STOP_S
            while self._supervisor.running and time.monotonic() < deadline:
                for end in self._supervisor.poll(_POLL_S)[1]:
                    if end.error is None:
                        self._trainer_stats[end.entry.address] = end.result
            raise CancelledError(self._cancelled)

    def _shard_stats(self) -> dict[int, dict[str, int]] | None:
        calls = {entry.address.index: entry.actor.stats.remote() for entry in self._directory.all("shard")}
        try:
            return dict(zip(calls, ray.get(list(calls.values()), timeout=_STOP_S), strict=True))
        except ray.exceptions.RayError:
            return None

    def _shards(self) -> list[Entry]:
        return self._directory.all("shard")

    def _trainers(self) -> list[Entry]:
        return self._directory.all("trainer")

    @property
    def driver_gone(self) -> bool:
        """The command that started the run has given no sign of life for ``failure.lease_s``."""
        return time.monotonic() - self._driver_seen_s > self._config.failure.lease_s

    def _described_stage(self) -> str:
        epochs = self._config.train.epochs
        stage = self._books.stage if self._books and self._stage != "finishing" else self._stage
        if self._books is None or epochs == 1 or stage != "training":
            return stage
        epoch = min(epochs, 1 + self._books.counts.trained * epochs // max(1, self._total_samples))
        return f"training, epoch {epoch}/{epochs}"

    def _enter_stage(self, stage: str) -> None:
        self._stage = stage
        self._event("stage", stage=stage)

    def _say(self, message: str) -> None:
        with self._lock:
            self._messages.append(message)

    def _event(self, kind: str, **fields: Any) -> None:
        self._files.event(kind, **fields)
