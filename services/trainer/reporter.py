"""Sends what the threads did to the coordinator, a few times a second, off the hot path."""

from __future__ import annotations

import threading
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from services.identity import Address
from services.trainer.progress_rates import ProgressRates
from trainer.data.block import RejectedLine
from trainer.ledger import Ledger

_INTERVAL_S = 0.1
_CALL_TIMEOUT_S = 30.0


class Reporter:
    """A daemon thread; ``close`` delivers the last report."""

    def __init__(self, address: Address, coordinator: Any, ledger: Ledger, rates: ProgressRates) -> None:
        self._address, self._coordinator, self._ledger, self._rates = address, coordinator, ledger, rates
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="reporter", daemon=True)
        self._rejected: list[RejectedLine] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin reporting."""
        self._thread.start()

    def rejected(self, lines: list[RejectedLine]) -> None:
        """Lines the reader could not use; called from reader threads."""
        with self._lock:
            self._rejected.extend(lines)

    def close(self) -> None:
        """Deliver what is left."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._send()

    def _keep(self) -> None:
        while not self._closed.wait(_INTERVAL_S):
            self._send()

    def _send(self) -> None:
        own = self._ledger.started_samples
        report = self._ledger.take()
        with self._lock:
            rejected, self._rejected = self._rejected, []
        if not report and not rejected:
            return
        try:
            call = self._coordinator.report.remote(self._address, report, rejected)
            others = ray.get(call, timeout=_CALL_TIMEOUT_S)
        except (RayActorError, GetTimeoutError):  # the lease decides how long a coordinator may be away
            self._ledger.give_back(report)
            with self._lock:
                self._rejected[:0] = rejected
            return
        self._rates.reported(others, own)
