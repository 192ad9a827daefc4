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
        self._thread = threading.Thread(target=self._keep, name="reporter", daemon=True)
        self._rejected: list[RejectedLine] = []
        self._lock = threading.Lock()
        self._number = 0
        self._undelivered: tuple[Report, list[RejectedLine], int] | None = None

    def start(self) -> None:
        """Begin reporting."""
        self._thread.start()

    def rejected(self, lines: list[RejectedLine]) -> None:
        """Lines the reader could not use; called from reader threads."""
        with self._lock:
            self._rejected.extend(lines)

    def close(self) -> None:
        """Deliver what is left; the lease ends the process when no coordinator takes it."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()
        while not self._send() or self._waiting():
            time.sleep(_INTERVAL_S)

    def _keep(self) -> None:
        try:
            while not self._closed.wait(_INTERVAL_S):
                self._send()
        except BaseException as error:  # nobody waits for this thread
            self._failed(error)

    def _waiting(self) -> bool:
        with self._lock:
            return bool(self._ledger) or bool(self._rejected)

    def _send(self) -> bool:
        """One report; False when it could not be delivered now and will be sent again, under the same number."""
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
