"""Sends what the threads did to the coordinator, a few times a second, off the hot path."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from services.identity import Address
from services.trainer.progress_rates import ProgressRates
from trainer.data.block import RejectedLine
from trainer.ledger import Ledger, Report

_INTERVAL_S = 0.1
_HURRY_S = 0.001
_CALL_TIMEOUT_S = 30.0
_MOST_KEPT = 100_000


class _Kept(NamedTuple):
    number: int
    report: Report
    rejected: list[RejectedLine]


class Reporter:
    """A daemon thread; ``close`` delivers the last report. Reports are numbered, so that a re-sent one counts once."""

    def __init__(
        self,
        address: Address,
        coordinator: Any,
        ledger: Ledger,
        rates: ProgressRates,
        failed: Callable[[BaseException], None],
    ) -> None:
        """``failed`` is told of an error that retrying cannot mend; without reports no row would ever be committed."""
        self._address, self._coordinator, self._ledger, self._rates = address, coordinator, ledger, rates
        self._failed = failed
        self._closed = threading.Event()
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="reporter", daemon=True)
        self._rejected: list[RejectedLine] = []
        self._lock = threading.Lock()
        self._number = 0
        self._sending = self._abandoned = False
        self._counted = 0
        self._kept: deque[_Kept] = deque(maxlen=_MOST_KEPT)  # until they would survive the coordinator

    def start(self) -> None:
        """Begin reporting."""
        self._thread.start()

    def rejected(self, lines: list[RejectedLine]) -> None:
        """Lines the reader could not use; called from reader threads."""
        with self._lock:
            self._rejected.extend(lines)

    def flush(self, timeout_s: float) -> bool:
        """Deliver what the threads, which stand still, have done; False when that takes longer."""
        deadline = time.monotonic() + timeout_s
        # In this order: what is no longer waiting is being sent, and what was sent may not have been counted.
        while self._waiting() or self._sending or self._counted < self._number:
            if time.monotonic() > deadline:
                return False
            self._hurry.set()
            time.sleep(_HURRY_S)
        return True

    def close(self) -> None:
        """Deliver what is left; the lease ends the process when no coordinator takes it."""
        self._closed.set()
        self._hurry.set()
        if self._thread.ident is not None:
            self._thread.join()
        while not self._abandoned and (not self._send() or self._waiting()):
            time.sleep(_INTERVAL_S)

    def abandon(self) -> None:
        """What was not reported does not count: everybody goes back to a save."""
        self._abandoned = True

    def _keep(self) -> None:
        try:
            while not self._closed.is_set():
                self._hurry.wait(_INTERVAL_S)
                self._hurry.clear()
                self._send()
        except BaseException as error:  # nobody waits for this thread
            self._failed(error)

    def _waiting(self) -> bool:
        with self._lock:
            return bool(self._ledger) or bool(self._rejected)

    def _send(self) -> bool:
        """One report; False when it could not be delivered now and will be sent again, under the same number."""
        self._sending = True
        try:
            return self._deliver()
        finally:
            self._sending = False

    def _deliver(self) -> bool:
        own, report = self._ledger.started_samples, self._ledger.take()
        with self._lock:
            rejected, self._rejected = self._rejected, []
        if report or rejected:
            self._number += 1
            self._kept.append(_Kept(self._number, report, rejected))
        while self._counted < self._number:
            following = next(kept for kept in self._kept if kept.number == self._counted + 1)
            try:
                call = self._coordinator.report.remote(
                    self._address, following.number, following.report, following.rejected
                )
                others, counted, durable = ray.get(call, timeout=_CALL_TIMEOUT_S)
            except (RayActorError, GetTimeoutError):  # the lease decides how long a coordinator may be away
                return False
            if counted < 0:  # it was started again and does not have its books yet
                return False
            self._counted = counted  # lower than before when it was started again: the rest is sent again
            while self._kept and self._kept[0].number <= durable:
                self._kept.popleft()
            self._rates.reported(others, own)
        return True
