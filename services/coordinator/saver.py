"""The saver: a thread of the coordinator that saves when the policy says so, and never while rows are restored."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from checkpoint.errors import CheckpointError
from checkpoint.manifest import SaveKind
from checkpoint.retention import RetentionPolicy
from checkpoint.save_policy import SaveOrder, SavePlan
from checkpoint.store import CheckpointStore
from services.config import RunConfig
from services.coordinator.save_planner import SavePlanner
from services.coordinator.save_round import SaveAbandonedError, Saved, SaveRound
from services.summary import CheckpointSummary

_POLL_S = 0.1
_REPLAN_S = 1.0
_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 60.0


class Saver:
    """Owns the store while a run goes. ``hold`` and ``save_now`` are called by the run's thread."""

    def __init__(
        self,
        config: RunConfig,
        store: CheckpointStore,
        timeline: int,
        planner: SavePlanner,
        round_: SaveRound,
        progress: Callable[[], tuple[float, int, int]],
        training: Callable[[], bool],
        event: Callable[..., None],
        say: Callable[[str], None],
        saved: Callable[[Saved], None],
    ) -> None:
        """``progress``: useful seconds, samples trained, samples of the run. ``training``: whether saves make sense.

        ``saved``: told of each complete save.
        """
        self._settings, self._store, self.timeline = config.checkpoint, store, timeline
        self.planner, self._round, self._progress, self._training = planner, round_, progress, training
        self._event, self._say, self._saved = event, say, saved
        self._turn = threading.RLock()  # held while a save is taken, and while rows are restored
        self._holders = 0
        self._closed = threading.Event()
        self._parent: str | None = None
        self._retry_s, self._retry_at = _FIRST_RETRY_S, 0.0
        self._planned: SavePlan | None = None
        self._counts: dict[SaveKind, int] = {"full": 0, "priority": 0, "delta": 0}
        self._bytes, self._stall_s, self._write_s = 0, 0.0, 0.0
        self._alarmed = False
        self._replanned_at = 0.0
        self._thread = threading.Thread(target=self._keep, name="saver", daemon=True)

    def start(self) -> None:
        """Begin; what crashed saves left is swept first."""
        self._thread.start()

    def close(self) -> None:
        """End after the save under way, if there is one."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """No save is under way meanwhile: one that is gives up, as its cuts would count as newer than restored rows."""
        self._holders += 1
        self._round.abort.set()
        try:
            with self._turn:
                yield
        finally:
            self._holders -= 1

    def interrupt(self) -> None:
        """Somebody died: a save under way gives up, without being waited for."""
        self._round.abort.set()

    def save_now(self, why: str) -> Saved | None:
        """A full, consistent save; ``None`` when it failed, which is said."""
        with self._turn:
            return self._take(SaveOrder("full", consistent=True), why)

    def rolled_back(self, save_id: str | None, timeline: int, samples: int) -> None:
        """Everybody is at ``save_id`` again, in a new timeline; what follows continues that."""
        useful_s, _, _ = self._progress()
        self._parent, self.timeline = save_id, timeline
        if save_id is not None:
            self.planner.restored(samples, useful_s)

    @property
    def parent(self) -> str | None:
        """The save that the next one continues."""
        return self._parent

    def recall(self, parent: str | None, timeline: int) -> None:
        """After a restart of the coordinator: what the next save continues."""
        self._parent, self.timeline = parent, timeline

    @property
    def summary(self) -> CheckpointSummary:
        """For ``summary.json``."""
        plan = self.planner.plan
        return CheckpointSummary(
            strategy=plan.strategy,
            interval_s=plan.interval_s,
            full_saves=self._counts["full"],
            priority_saves=self._counts["priority"],
            delta_saves=self._counts["delta"],
            bytes=self._bytes,
            stall_s=self._stall_s,
            write_s=self._write_s,
        )

    def replan(self) -> None:
        """Look again at budget, failures and speed; a change of plan is said."""
        before = self._planned
        plan = self._planned = self.planner.replan(*self._progress())
        if (
            before is None
            or (before.mode, before.strategy) != (plan.mode, plan.strategy)
            or not (0.5 < plan.interval_s / before.interval_s < 2.0)
        ):
            observed = self.planner.observed_mtbf
            self._event(
                "save_plan",
                mode=plan.mode,
                strategy=plan.strategy,
                interval_s=plan.interval_s,
                save_every_s=plan.save_every_s,
                reason=plan.reason,
                spent_pls=self.planner.spent_pls,
                mtbf_s=self.planner.mtbf_s,
                mtbf_low_s=observed.low_s,
                mtbf_high_s=observed.high_s if math.isfinite(observed.high_s) else None,
            )
            if before is not None:
                verb = "tightened" if plan.interval_s < before.interval_s else "loosened"
                what = (
                    f"recovery mode is {plan.mode} now"
                    if plan.mode != before.mode
                    else f"save interval {verb} from {before.interval_s:.3g} s to {plan.interval_s:.3g} s"
                )
                self._say(f"{what}: {plan.reason}")
        else:
            self._planned = before  # small changes add up to one worth saying

    def _keep(self) -> None:
        with contextlib.suppress(CheckpointError):
            self._store.sweep()
        while not self._closed.wait(_POLL_S):
            try:
                self._look()
            except Exception:  # a run without saves must not look like one with them
                self._event("saver_failed", traceback=traceback.format_exc())
                self._say(
                    f"the saver failed, no save is taken for {_LAST_RETRY_S:g} s: {traceback.format_exc(limit=-1)}"
                )
                self._retry_at = time.monotonic() + _LAST_RETRY_S

    def _look(self) -> None:
        """Take the save that is due, if any."""
        now = time.monotonic()
        if now - self._replanned_at > _REPLAN_S:
            self._replanned_at = now
            self.replan()
        if self._holders or now < self._retry_at or not self._training():
            return
        order = self.planner.due(self._progress()[0])
        if order is not None:
            with self._turn:
                if not self._holders and not self._closed.is_set():
                    self._take(order, "due")

    def _take(self, order: SaveOrder, why: str) -> Saved | None:
        if self._parent is None and order.kind != "full":
            order = SaveOrder("full", consistent=True)
        try:
            useful_s = self._progress()[0]
            saved = self._round.take(order, self.timeline, self._parent)
        except Exception as error:  # whatever it is, it must not end the saves of a run that goes on
            self._failed(order, error)
            return None
        manifest = saved.manifest
        self._parent = manifest.save_id
        self._saved(saved)
        self._retry_s = _FIRST_RETRY_S
        stall_s = saved.pause_s + saved.stall_s
        # However often saves are due, they hold training up for no more than their share of the time.
        self._retry_at = time.monotonic() + max(0.0, stall_s / self._settings.copy_share - saved.write_s)
        self.planner.saved(order, useful_s, manifest.samples, stall_s)
        self._counts[order.kind] += 1
        self._bytes += saved.bytes
        self._stall_s += stall_s
        self._write_s += saved.write_s
        self._event(
            "saved",
            save_id=manifest.save_id,
            why=why,
            save_kind=order.kind,
            consistent=order.consistent,
            samples=manifest.samples,
            bytes=saved.bytes,
            pause_s=saved.pause_s,
            stall_s=saved.stall_s,
            write_s=saved.write_s,
        )
        if self._alarmed:
            self._say(f"saves succeed again: {manifest.save_id} at {manifest.samples:,} samples")
            self._alarmed = False
        retention = self._settings.retention
        try:
            self._store.retain(RetentionPolicy(retention.keep_last, retention.keep_every_s))
        except CheckpointError as error:
            self._event("retention_failed", error=str(error))
        return saved

    def _failed(self, order: SaveOrder, error: Exception) -> None:
        """Training goes on; it is tried again, less and less often."""
        abandoned = isinstance(error, SaveAbandonedError)
        self._retry_at = time.monotonic() + (_FIRST_RETRY_S if abandoned else self._retry_s)
        self._retry_s = _FIRST_RETRY_S if abandoned else min(_LAST_RETRY_S, 2 * self._retry_s)
        _, trained, total = self._progress()
        at_risk = trained - self.planner.covered_samples
        share = max(self.planner.shares)
        self._event(
            "save_failed",
            save_kind=order.kind,
            error=str(error),
            type=type(error).__name__,
            samples_at_risk=at_risk,
            pls_at_risk=share * at_risk / max(1, total),
        )
        if not abandoned and not self._alarmed:
            self._alarmed = True
            self._say(
                f"a {order.kind} save failed, training goes on: {error}; {at_risk:,} samples are not saved, "
                f"PLS at risk {share * at_risk / max(1, total):.4g}"
            )
