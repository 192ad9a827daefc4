"""Injector: runs a plan against a living run from outside, and says what became of every fault."""

from __future__ import annotations

import contextlib
import fcntl
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from services.faults.aim import Aim
from services.faults.arm import Arm
from services.faults.board_reader import BoardReader
from services.faults.fault_log import FaultLog, Report
from services.faults.held import GuardianGone, Held
from services.faults.holds import Holds
from services.faults.plan import AtTime, FaultPlan, Kill, OnPhase, PoisonBatch, Stop, StorageFailure
from services.faults.run_files import FaultFiles, SampleCount, fault_files
from services.faults.schedule import expand
from services.faults.strikes import Strikes
from services.faults.targets import Targets, find_targets

_POLL_S: Final = 20e-6
_LOOK_S: Final = 0.005
_READ_S: Final = 0.05


class InjectorError(RuntimeError):
    """The plan cannot be run against this run directory."""


class Injector:
    """Runs once. Not thread-safe, but ``stop`` may be called from anywhere, also from a signal handler.

    Args:
        plan: what to do.
        run_dir: of the run; may not exist yet.
        wait_s: longest time until the run is there and has trained ``plan.start_samples``.
        ended: whether the run is over; by default, when it has written a summary.
    """

    def __init__(
        self, plan: FaultPlan, run_dir: str | Path, *, wait_s: float = 120.0, ended: Callable[[], bool] | None = None
    ) -> None:
        self._plan, self._run_dir, self._wait_s = plan, Path(run_dir), wait_s
        self._made_unix_s = time.time()
        self._ended = ended or self._has_summary
        self._stopped = False
        self._count = SampleCount(self._run_dir)
        self._begun_s = time.monotonic()

    def stop(self) -> None:
        """End soon: undo what is held, report the rest as not injected."""
        self._stopped = True

    def run(self) -> Report:
        """Until every fault was placed or given up and every held one is undone, or the run ended.

        Raises:
            InjectorError: no such run came within ``wait_s``, or another injector is at work on it.
        """
        files = fault_files(self._run_dir)
        targets, board = self._wait_for_run()
        files.log.parent.mkdir(parents=True, exist_ok=True)
        log = FaultLog(files.log)
        with _alone(files), Held(files.log) as held:
            self._begun_s = time.monotonic()
            holds = Holds(held, log, str(files.control))
            rng = random.Random(self._plan.seed)
            strikes = Strikes(targets, board, holds, log, rng, str(files.control))
            arms = [Arm(series, self._now()) for series in expand(self._plan)]
            try:
                reason = self._loop(arms, strikes, holds, board, held)
            except GuardianGone as error:
                reason = str(error)
            for arm in arms:
                while not arm.done:
                    detail = f": {arm.aim}" if arm.aim else ""
                    strikes.give_up(arm, self._now(), self._count.samples, reason + detail)
            holds.release_all(self._now())
        return log.report()

    def _loop(self, arms: list[Arm], strikes: Strikes, holds: Holds, board: BoardReader | None, held: Held) -> str:
        """Returns why it ended."""
        look_s = read_s = 0.0
        ended = False
        while True:
            waiting = [arm for arm in arms if not arm.done]
            if not waiting and not holds.any:
                return "done"
            now_s = self._now()
            if looking := now_s >= look_s:
                look_s = now_s + _LOOK_S
                if now_s >= read_s:
                    read_s = now_s + _READ_S
                    self._count.look()
                    ended = self._ended()
                holds.release_due(now_s)
            if self._stopped or ended:
                return "the run ended before" if ended else "the injector was told to stop before"
            aimed = False
            for arm in waiting:
                if isinstance(arm.moment, OnPhase):
                    aimed = True
                    self._aim(arm, strikes, holds, board, held, now_s, looking)
                elif looking and self._is_due(arm, now_s):
                    self._strike(arm, strikes, now_s)
            time.sleep(_POLL_S if aimed and board else _LOOK_S)

    def _aim(
        self,
        arm: Arm,
        strikes: Strikes,
        holds: Holds,
        board: BoardReader | None,
        held: Held,
        now_s: float,
        looking: bool,
    ) -> None:
        moment, fault = arm.moment, arm.series.fault
        assert isinstance(moment, OnPhase) and isinstance(fault, Kill | Stop)  # only they have phases
        if board is None:
            samples = self._count.samples
            strikes.give_up(
                arm, now_s, samples, f"no phase board in {fault_files(self._run_dir).board}: phases are not known"
            )
            return
        if arm.aim is None:
            arm.aim = Aim(board, held, fault.whom, moment, holds.stopped)
        elif looking:
            arm.aim.look()
        frozen = arm.aim.poll()
        if frozen is not None:
            strikes.hit(arm, frozen, self._now(), self._count.samples)
        elif moment.within_s is not None and now_s > arm.armed_s + moment.within_s:
            strikes.give_up(arm, now_s, self._count.samples, f"within_s={moment.within_s:g}: {arm.aim}")

    def _is_due(self, arm: Arm, now_s: float) -> bool:
        if arm.due_s is None:
            moment = arm.moment
            if isinstance(moment, AtTime):
                arm.due_s = moment.at_s if now_s >= moment.at_s else None
            else:
                assert not isinstance(moment, OnPhase)
                arm.due_s = now_s if self._count.samples >= moment.at_samples else None
        return arm.due_s is not None

    def _strike(self, arm: Arm, strikes: Strikes, now_s: float) -> None:
        """Place a fault that is due, or give it up when its patience has run out."""
        fault, samples = arm.series.fault, self._count.samples
        if isinstance(fault, StorageFailure):
            why = strikes.storage(arm, fault, now_s, samples)
        elif isinstance(fault, PoisonBatch):
            why = strikes.poison(arm, fault, now_s, samples)
        else:
            why = strikes.process(arm, fault, now_s, samples)
        if why is not None and now_s > (arm.due_s or 0.0) + self._plan.patience_s:
            strikes.give_up(arm, now_s, samples, f"{why} for patience_s={self._plan.patience_s:g}")

    def _now(self) -> float:
        return time.monotonic() - self._begun_s

    def _has_summary(self) -> bool:
        try:
            return (self._run_dir / "summary.json").stat().st_mtime >= self._made_unix_s
        except FileNotFoundError:
            return False

    def _wait_for_run(self) -> tuple[Targets, BoardReader | None]:
        deadline = time.monotonic() + self._wait_s
        while True:
            found = find_targets(self._run_dir)
            if found is not None and self._count.look() >= self._plan.start_samples:
                return found
            if self._stopped or time.monotonic() > deadline:
                lacks = "no phase board and no events" if found is None else f"{self._count.samples} samples trained"
                raise InjectorError(
                    f"{self._run_dir}: {lacks} after {self._wait_s:g} s of waiting for the run"
                    + (f" (start_samples={self._plan.start_samples})" if found else "; is it the run's directory?")
                )
            time.sleep(_READ_S)


@contextlib.contextmanager
def _alone(files: FaultFiles) -> Iterator[None]:
    with open(files.lock, "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InjectorError(f"{files.lock}: another injector is at work on this run; wait for it") from error
        yield
