"""The reader's source of work: leases from the coordinator."""

from __future__ import annotations

import threading
import time
from typing import Any

import ray

from services.identity import Address
from trainer.data.lease_source import Done, Drain, Signal
from trainer.data.split import Lease

_POLL_S = 0.02


class CoordinatorLeases:
    """``LeaseSource`` over the coordinator's work queue; used by several reader threads.

    ``idle_s`` is the time readers waited because all rows of the stage were out with somebody.
    """

    def __init__(self, trainer: Address, coordinator: Any, stop: threading.Event) -> None:
        self._trainer, self._coordinator, self._stop = trainer, coordinator, stop
        self._drained = threading.local()
        self.idle_s = 0.0

    def next(self) -> Lease | Signal:
        """Next lease; ``DRAIN`` once when there is nothing *now* (rows of others are awaited), then blocks."""
        while not self._stop.is_set():
            answer = ray.get(self._coordinator.lease.remote(self._trainer))
            if isinstance(answer, Lease):
                self._drained.told = False
                return answer
            if answer == "done":
                return Done
            if not getattr(self._drained, "told", False):
                self._drained.told = True
                return Drain
            time.sleep(_POLL_S)
            self.idle_s += _POLL_S
        return Done
