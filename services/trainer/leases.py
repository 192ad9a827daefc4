"""The reader's source of work: leases from the coordinator."""

from __future__ import annotations

import threading
import time
from typing import Any

import ray
from ray.exceptions import RayActorError

from services.identity import Address
from trainer.data.batch import Batch
from trainer.data.lease_source import Done, Drain, Signal
from trainer.data.split import Lease

_POLL_S = 0.02
_RETRY_S = 0.5


class CoordinatorLeases:
    """``LeaseSource`` over the coordinator's work queue; used by several reader threads."""

    def __init__(self, trainer: Address, coordinator: Any, stop: threading.Event, readers: int) -> None:
        self._trainer, self._coordinator, self._stop, self._readers = trainer, coordinator, stop, readers
        self._told = threading.local()
        self._lock = threading.Lock()
        self._waiting = 0
        self._idle_s, self._idle_since = 0.0, 0.0
        self._seen_before: set[int] = set()
        self.eval_round = 0

    def next(self) -> Lease | Signal:
        """Next lease; ``Drain`` once when there is nothing *now* (rows of others are awaited), then blocks."""
        waiting = False
        try:
            while not self._stop.is_set():
                answer = self._ask()
                if isinstance(answer, Lease):
                    self._told.drain = False
                    self._note(answer)
                    return answer
                if answer == "done":
                    return Done
                if not getattr(self._told, "drain", False):
                    self._told.drain = True
                    return Drain
                if not waiting:
                    waiting = True
                    self._wait(+1)
                time.sleep(_POLL_S)
            return Done
        finally:
            if waiting:
                self._wait(-1)

    def idle_s(self) -> float:
        """Seconds in which all readers waited, because all rows of the stage were out with somebody."""
        with self._lock:
            open_s = time.perf_counter() - self._idle_since if self._waiting == self._readers else 0.0
            return self._idle_s + open_s

    def first_pass(self, batch: Batch) -> bool:
        """True when no row of the batch was leased to anybody before (first epoch, not queued again)."""
        return not any(span.lease_id in self._seen_before for span in batch.spans)

    def _ask(self) -> Any:
        try:
            return ray.get(self._coordinator.lease.remote(self._trainer))
        except RayActorError:  # the process's lease decides how long a coordinator may be away
            time.sleep(_RETRY_S)
            return "wait"

    def _note(self, lease: Lease) -> None:
        with self._lock:
            if lease.purpose != "train":
                self.eval_round = lease.epoch
            elif lease.epoch > 1 or lease.requeued:
                self._seen_before.add(lease.lease_id)

    def _wait(self, change: int) -> None:
        now = time.perf_counter()
        with self._lock:
            if self._waiting == self._readers:
                self._idle_s += now - self._idle_since
            self._waiting += change
            if self._waiting == self._readers:
                self._idle_since = now
