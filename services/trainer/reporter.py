"""Sends what the threads did to the coordinator, a few times a second, off the hot path."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from services.identity import Address
from services.trainer.progress_rates import ProgressRates
from trainer.data.block import RejectedLine
from trainer.ledger import Ledger, Report

_INTERVAL_S = 0.1
_HURRY_S = 0.001
_CALL_TIMEOUT_S = 30.0


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
        self._undelivered: tuple[Report, list[RejectedLine], int] | None = None

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
        # In this order: what is no longer waiting is being sent, and what is no longer being sent may have failed.
        while self._waiting() or self._sending or self._undelivered is not None:
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
        if self._undelivered is None:
            own, report = self._ledger.started_samples, self._ledger.take()
            with self._lock:
                rejected, self._rejected = self._rejected, []
            if not report and not rejected:
                return True
            self._number += 1
            self._undelivered = (report, rejected, own)
        report, rejected, own = self._undelivered
        try:
            call = self._coordinator.report.remote(self._address, self._number, report, rejected)
            others = ray.get(call, timeout=_CALL_TIMEOUT_S)
        except (RayActorError, GetTimeoutError):  # the lease decides how long a coordinator may be away
            return False
        self._undelivered = None
        self._rates.reported(others, own)
        return True
