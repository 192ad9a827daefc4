"""One run from started actors to its summary: what the coordinator does, without the actor around it."""

from __future__ import annotations

import threading
import time
import traceback
from typing import Any, Literal

import ray

from checkpoint.policy import FailureEvent, FailureHistory, RecoveryPolicy
from services.config import RunConfig
from services.coordinator.accounts import Accounts, TooManyBadError
from services.coordinator.data import prepare_data
from services.coordinator.directory import Directory
from services.coordinator.launch import Launcher
from services.coordinator.nodes import Assignment
from services.coordinator.run_files import RunFiles
from services.coordinator.setup import PlacedTables, PreparedData, RunSetup, place_tables
from services.coordinator.summarize import summarize
from services.coordinator.supervisor import Death, Finished, Supervisor
from services.coordinator.work_queue import AccountingError, RowCounts, WorkQueue
from services.identity import Address
from services.placement_report import PlacementReport
from services.progress import Progress
from services.summary import Failure, State
from services.transport.client import ShardUnavailableError
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
    own = isinstance(cause, (RunFailedError, TooManyBadError, ValueError, ShardUnavailableError))
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
        self._queue: WorkQueue | None = None
        self._accounts: Accounts | None = None
        self._stage = "starting actors"
        self._messages: list[str] = []
        self._placement: PlacementReport | None = None
        self._failures: list[Failure] = []
        self._fatal: BaseException | None = None
        self._cancelled: str | None = None
        self._trainer_stats: dict[Address, dict[str, Any]] = {}
        self._driver_seen_s = time.monotonic()
        self._total_samples = 0
        self._replacements = 0

    # ---- called by the driver -------------------------------------------------------------------------------------

    def run(self) -> str:
        """The whole run; returns its summary as JSON (also on failure)."""
        state: State = "FAILED"
        error: str | None = None
        self._event("started", run=self._config.name, run_id=self._run_id)
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
        applied = self._samples_applied() if state != "FAILED" else 0
        self._launcher.end_all()
        with self._lock:
            summary = summarize(
                self._config,
                state,
                error,
                counts=self._queue.counts if self._queue else RowCounts(),
                accounts=self._accounts,
                samples_applied=applied,
                started_s=self._started_s,
                ended_s=time.monotonic(),
                trainer_stats=list(self._trainer_stats.values()),
                failures=self._failures,
            )
        summary.write(self._files.directory / "summary.json")
        self._event("ended", state=state, error=error)
        return summary.to_json()

    def progress(self) -> Progress:
        """A snapshot for the live display; also the driver's sign of life."""
        self._driver_seen_s = now = time.monotonic()
        with self._lock:
            accounts, queue = self._accounts, self._queue
            messages, self._messages = self._messages, []
            placement, self._placement = self._placement, None
            speed, loss = accounts.recent(now) if accounts else (0.0, None)
            phases: dict[str, float] = {}
            for stats in self._trainer_stats.values():
                for phase, seconds in stats.get("phases", {}).items():
                    phases[phase] = phases.get(phase, 0.0) + seconds
            busy = sum(phases.values())
            last = accounts.evaluations[-1].metrics if accounts and accounts.evaluations else None
            return Progress(
                state="STOPPING" if self._cancelled else "RUNNING" if queue else "STARTING",
                stage=self._described_stage(),
                samples=queue.counts.trained if queue else 0,
                total_samples=self._total_samples,
                throughput_samples_per_s=speed,
                loss=loss.logloss if loss else None,
                ne=loss.ne if loss else None,
                auc=last.auc if last else None,
                phases={phase: seconds / busy for phase, seconds in phases.items()} if busy else {},
                trainers=len(self._directory.all("trainer")),
                shards=len(self._directory.all("shard")),
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
        with self._lock:
            if not self._directory.knows(trainer) or self._cancelled or self._fatal:
                return "done"
            if self._queue is None:  # readers start before the last trainer is set up
                return "wait"
            return self._queue.lease(trainer.index)

    def report(self, trainer: Address, report: Report, rejected: list[RejectedLine]) -> int:
        """What a trainer did since its last report; returns the samples that the others have committed."""
        with self._lock:
            if self._queue is None or self._accounts is None or not self._directory.knows(trainer):
                return 0  # replaced: its rows were queued again, so its report must not count
            try:
                self._account(trainer, report, rejected)
            except (TooManyBadError, AccountingError) as error:
                self._fatal = self._fatal or error
            return self._queue.trained_by_others(trainer.index)

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
        self._enter_stage("loading rows")
        self._setup.load_shards()
        with self._lock:
            self._total_samples = total
            rows = data.plan.train_rows + data.plan.eval_rows
            self._accounts = Accounts(int(config.data.max_bad_lines * rows), config.train.max_bad_batches)
        self._event("data", train_rows=data.plan.train_rows, eval_rows=data.plan.eval_rows)
        held_out = "the latest in time" if config.data.eval is None else "from data.eval"
        self._say(f"{data.plan.train_rows:,} training rows; {data.plan.eval_rows:,} held out, {held_out}")
        self._enter_stage("setting up trainers")
        calls = {entry.address.index: self._setup.start_setup(entry.address.index) for entry in self._trainers()}
        for trainer_id, call in calls.items():
            self._setup.setup_trainer(trainer_id, call)
        self._setup.load_center()
        with self._lock:
            queue = WorkQueue(data.plan.train, data.plan.eval, config.train.epochs, config.train.eval_every_samples)
            self._queue = queue
        for entry in self._trainers():
            self._supervisor.run(entry)
        self._show_stage()

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
        running = {entry.address for entry in self._trainers()}
        while running:
            deaths, finished = self._supervisor.poll(_POLL_S)
            self._check()
            for death in deaths:
                replacement = self._handle(death)
                running.discard(death.entry.address)
                if replacement is not None:
                    running.add(replacement)
            for end in finished:
                if self._handle_end(end):
                    running.discard(end.entry.address)
        assert self._queue is not None
        self._check()
        if not self._queue.done:
            raise RunFailedError("every trainer ended, but rows are still uncommitted")

    def _handle(self, death: Death) -> Address | None:
        """A death: record it, decide, act. Returns the address of a replacement."""
        entry, address = death.entry, death.entry.address
        self._launcher.confirm_dead(entry)  # a hung process must not come back beside its successor
        with self._lock:
            self._directory.remove(address)
            samples = self._queue.counts.trained if self._queue else 0
        event = FailureEvent(address.role, address.index, address.generation, death.cause, samples)
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
        return self._replace_trainer(entry, failure)

    def _replace_trainer(self, dead: Any, failure: Failure) -> Address:
        started = time.monotonic()
        trainer_id = dead.address.index
        with self._lock:
            rows = self._queue.requeue(trainer_id) if self._queue else 0
            self._replacements += 1
        self._launcher.release_memory(dead.node_id, f"{dead.address}/")
        entry = self._launcher.role("trainer", trainer_id, dead.node_id)
        self._supervisor.watch(entry)
        try:
            call = self._setup.start_setup(trainer_id, failure.at_samples)
            adopted = self._setup.setup_trainer(trainer_id, call)
        except (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError):  # a watch reports who died
            self._failures.append(failure)
            return entry.address
        self._supervisor.run(entry)
        seconds = time.monotonic() - started
        self._failures.append(
            failure.model_copy(update={"reschedule_s": seconds, "mode": "warm" if adopted else "partial"})
        )
        self._say(
            f"trainer {trainer_id} died ({failure.cause}); {entry.address} took over in {seconds:.1f} s, "
            f"{rows:,} uncommitted rows queued again"
        )
        self._event("replaced", address=str(entry.address), requeued_rows=rows, seconds=seconds, adopted=adopted)
        return entry.address

    def _handle_end(self, end: Finished) -> bool:
        """A trainer returned or raised; False when it (or what it called) died, which a watch reports."""
        if end.error is None:
            self._trainer_stats[end.entry.address] = end.result
            return True
        if isinstance(end.error, ray.exceptions.RayActorError):
            return False
        if isinstance(end.error, ShardUnavailableError):
            deadline = time.monotonic() + _ROOT_CAUSE_S  # the shard's own death is the better explanation
            while time.monotonic() < deadline:
                for death in self._supervisor.poll(_POLL_S)[0]:
                    self._handle(death)
        raise RunFailedError(f"{end.entry.address}: {explain(end.error)}")

    def _check(self) -> None:
        """Leave when the run was cancelled, has failed, or lost its driver."""
        if self._fatal is not None:
            raise self._fatal
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

    def _account(self, trainer: Address, report: Report, rejected: list[RejectedLine]) -> None:
        assert self._queue is not None and self._accounts is not None
        now = time.monotonic()
        before, stages_done = self._queue.stage, self._queue.stages_done
        where = {commit.lease_id: self._queue.path_of(commit.lease_id) for commit in report.commits if commit.skipped}
        self._accounts.report(report, now)
        self._queue.commit(trainer.index, report.commits)
        if fresh := self._accounts.reject(rejected):
            self._files.rejected(fresh)
            self._accounts.check_lines()
        for bad in report.bad_batches:
            spans = ", ".join(f"{where.get(span.lease_id)} rows {span.start}-{span.end - 1}" for span in bad.spans)
            self._event("bad_batch", where=spans, loss=str(bad.loss))  # JSON has no NaN
            self._accounts.bad_batch(bad, spans)
        if before is not None and self._queue.stages_done > stages_done:
            evaluation = self._accounts.stage_ended(before[0], self._queue.counts.trained)
            if evaluation is not None:
                metrics = evaluation.metrics
                self._files.metrics(at_samples=evaluation.at_samples, **metrics.summary())
                warning = metrics.warning()
                auc = "-" if metrics.auc is None else f"{metrics.auc:.4f}"
                self._say(f"evaluated {metrics.samples:,} rows: AUC {auc}" + (f". {warning}" if warning else ""))
                if warning:
                    self._event("warning", text=warning)
            self._show_stage()

    def _samples_applied(self) -> int:
        calls = [entry.actor.stats.remote() for entry in self._directory.all("shard")]
        try:
            return max((stats.get("samples", 0) for stats in ray.get(calls, timeout=_STOP_S)), default=0)
        except ray.exceptions.RayError:
            return 0

    def _trainers(self) -> list[Any]:
        return self._directory.all("trainer")

    @property
    def driver_gone(self) -> bool:
        """The command that started the run has not asked for progress for ``failure.lease_s``."""
        return time.monotonic() - self._driver_seen_s > self._config.failure.lease_s

    def _described_stage(self) -> str:
        epochs = self._config.train.epochs
        if self._queue is None or epochs == 1 or self._stage != "training":
            return self._stage
        epoch = min(epochs, 1 + self._queue.counts.trained * epochs // max(1, self._total_samples))
        return f"training, epoch {epoch}/{epochs}"

    def _show_stage(self) -> None:
        stage = self._queue.stage if self._queue else None
        if stage is None:
            self._enter_stage("finishing")
        elif stage[0] == "train":
            self._enter_stage("training")
        else:
            self._enter_stage(f"evaluating, round {stage[1]}")

    def _enter_stage(self, stage: str) -> None:
        self._stage = stage
        self._event("stage", stage=stage)

    def _say(self, message: str) -> None:
        with self._lock:
            self._messages.append(message)

    def _event(self, kind: str, **fields: Any) -> None:
        self._files.event(kind, **fields)
