"""An actor's lease on its run: heartbeats to the coordinator, and the end of the process when nobody renews it.

That is what keeps anything from outliving its run: no role actor is owned by a driver (they are detached), so an actor
whose coordinator is gone for ``lease_s``, or that was replaced, leaves by itself.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import ray

from services.identity import Address
from services.memory.process import identify

EXIT_LEASE_LOST = 3


class Lease:
    """A daemon thread that sends heartbeats and watches the clock."""

    def __init__(
        self,
        address: Address,
        coordinator: Any,
        heartbeat_s: float,
        lease_s: float,
        payload: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        """``payload`` is called before each heartbeat; its dict travels with it."""
        self._address, self._coordinator = address, coordinator
        self._heartbeat_s, self._lease_s = heartbeat_s, lease_s
        self._payload = payload
        self._process = identify()
        threading.Thread(target=self._keep, name="lease", daemon=True).start()

    def become(self, address: Address) -> None:
        """From now on the process is another incarnation (a spare that took over)."""
        self._address = address

    def _keep(self) -> None:
        renewed = time.monotonic()
        while True:
            sent, address = time.monotonic(), self._address
            try:
                payload = self._payload() if self._payload else {}
                call = self._coordinator.heartbeat.remote(address, self._process, payload)
                known = ray.get(call, timeout=max(self._heartbeat_s, self._lease_s / 3))
                if not known and address == self._address:  # else it became another one while it asked
                    self._leave("the coordinator does not know this incarnation (it was replaced or the run is over)")
                renewed = sent
            except Exception as error:  # any failure to reach the coordinator only counts against the clock
                if time.monotonic() - renewed > self._lease_s:
                    self._leave(f"no coordinator for failure.lease_s={self._lease_s:g} s ({type(error).__name__})")
            time.sleep(max(0.0, self._heartbeat_s - (time.monotonic() - sent)))

    def _leave(self, why: str) -> None:
        print(f"{self._address}: leaving: {why}", file=sys.stderr, flush=True)
        os._exit(EXIT_LEASE_LOST)
