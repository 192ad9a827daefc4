"""Rows that are gone come back from saves: those of one shard, while all others go on (CPR's partial recovery)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray

from checkpoint.restore import RestoreReport
from services.coordinator.directory import Entry
from services.coordinator.failure_line import failure_line
from services.coordinator.launch import Launcher
from services.coordinator.recovery import DIED_TOO, Recovery
from services.coordinator.saver import Saver
from services.coordinator.setup import RunSetup
from services.shard.restoring import RestoreOrder
from services.summary import Failure

_ATTEMPTS = 3


class RowRecovery:
    """Restores shards; the saver stands still meanwhile, or its cuts would count as newer than what is restored."""

    def __init__(
        self,
        recovery: Recovery,
        launcher: Launcher,
        setup: RunSetup,
        saver: Saver,
        source: RestoreOrder,
        total_samples: int,
        pending: Callable[[int], int | None],
        accesses: Callable[[], int | None],
        restored: Callable[[int], None],
        event: Callable[..., None],
        say: Callable[[str], None],
    ) -> None:
        """``source``: all saves. ``pending``: a shard's last count of accesses to rows since they were saved.

        ``accesses``: of the whole run, as far as that can be told. ``restored``: told of a shard that begins anew.
        """
        self._recovery, self._launcher, self._setup, self._saver = recovery, launcher, setup, saver
        self._source, self._total, self._pending, self._accesses = source, total_samples, pending, accesses
        self._restored, self._event, self._say = restored, event, say

    def restore_shard(self, dead: Entry, node_id: str, failure: Failure) -> Failure:
        """A spare of ``node_id``, or a new process there, gets the newest saved version of every row."""
        started, shard_id = time.monotonic(), dead.address.index
        planner = self._saver.planner
        with self._saver.hold():
            losses = planner.loss([shard_id], failure.at_samples, {shard_id: self._pending(shard_id)})
            self._launcher.release_memory(node_id, f"shard-{shard_id}/")
            entry, report, load_s, spare = self.bring(dead, node_id, self._source)
            loss = losses[0]
            pls = loss.share * loss.lost_samples / self._total
            planner.row_losing_failures += 1
            planner.spent_pls += pls
            planner.charge_accesses(loss.pending_accesses, self._accesses())
            self._restored(shard_id)
            self._saver.replan()
        seconds = time.monotonic() - started
        failure = failure.model_copy(
            update={
                "mode": "partial",
                "reschedule_s": max(0.0, seconds - load_s),
                "load_s": load_s,
                "replay_s": 0.0,
                "pls": pls,
                "samples_at_risk": loss.lost_samples,
                **self.budget(),
            }
        )
        self._say(failure_line(failure, f"{entry.address} has {_source(report)}"))
        self._event(
            "restored",
            address=str(entry.address),
            pid=entry.process[0] if entry.process else None,
            spare=spare,
            seconds=seconds,
            load_s=load_s,
            save_ids=[] if report is None else list(report.save_ids),
            rows_by_save={} if report is None else dict(report.rows_by_save),
            skipped=[] if report is None else [str(one) for one in report.skipped],
            share=loss.share,
            at_samples=failure.at_samples,
            covered_samples=failure.at_samples - loss.lost_samples,
            total_samples=self._total,
            pending_accesses=loss.pending_accesses,
            pls=pls,
            **self.budget(),
        )
        return failure

    def budget(self) -> dict[str, float | None]:
        """What is spent and left."""
        planner = self._saver.planner
        return {
            "pls_spent": planner.spent_pls,
            "pls_effective": planner.effective_pls,
            "pls_left": max(0.0, planner.budget - planner.spent_pls),
        }

    def bring(self, dead: Entry, node_id: str, order: RestoreOrder) -> tuple[Entry, Any, float, bool]:
        """The shard's next incarnation with rows of ``order``; who dies while it restores is replaced in turn.

        Returns:
            It, what was restored, the seconds that took, and whether it was a spare.

        Raises:
            CheckpointError: the saves cannot be read.
            RayError: it died or hung again and again.
        """
        spec = self._setup.shard_spec(dead.address.index)
        for attempt in range(_ATTEMPTS):
            entry, spare = self._recovery.successor_process(dead, node_id)
            try:
                call = entry.actor.restore.remote(entry.address, spec, order)
                process, report, load_s = self._setup.patience.wait(call, entry)
            except DIED_TOO:
                if attempt == _ATTEMPTS - 1:
                    raise
                self._recovery.forget(entry, spare)
                self._launcher.release_memory(node_id, f"shard-{dead.address.index}/")
                continue
            except ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, Exception) else error) from error
            self._recovery.serve(entry, spare, process)
            if spare is not None:
                self._recovery.start_spare(spare.index, node_id)
            return entry, report, load_s, spare is not None
        raise AssertionError("unreachable")


def _source(report: RestoreReport | None) -> str:
    if report is None:
        return "its first values: nothing was saved yet"
    rows = ", ".join(f"{rows:,} rows from {save}" for save, rows in report.rows_by_save.items() if rows)
    return f"{rows or 'no rows'}, the newest at {report.samples:,} samples"
