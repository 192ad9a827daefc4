"""Foreground EASGD: whichever thread completes a trainer's ``gap``-th iteration exchanges with the sync server."""

from __future__ import annotations

import threading
import time
from typing import Any

import ray
from torch import Tensor

from services.identity import Address
from services.memory.region import Region
from services.sync_server.server import exchange_slab_layout
from services.transport.messages import to_array, to_tensor


class ForegroundEasgd:
    """``Synchronizer`` until ShadowSync takes it out of the loop (ShadowSync §2.3, FR-EASGD-k)."""

    def __init__(self, trainer: Address, server: Any, server_keeper: str | None, weights: Tensor, gap: int) -> None:
        """``server_keeper`` names the keeper this node shares with the server; ``None`` when it is on another node."""
        self._trainer, self._server, self._weights, self._gap = trainer, server, weights, gap
        self._count_lock, self._exchange_lock = threading.Lock(), threading.Lock()
        self.iterations, self.syncs, self.stall_s = 0, 0, 0.0
        self._exchanged_at = 0
        self._slab: Tensor | None = None
        if server_keeper is not None:
            name = f"{trainer}/sync"
            region = Region.create(
                server_keeper, name, exchange_slab_layout(trainer, weights.numel()), trainer.generation
            )
            region.mark_ready()
            ray.get(server.attach_slab.remote(trainer, name))
            self._slab = region.arrays["weights"]

    def after_step(self) -> float:
        """Exchange when due; returns the seconds it took."""
        with self._count_lock:
            self.iterations += 1
            due = self.iterations % self._gap == 0
        return self._exchange() if due else 0.0

    def settle(self) -> float:
        """Bring the last iterations to the centre, if there were any since the last exchange."""
        return self._exchange() if self.iterations > self._exchanged_at else 0.0

    def center(self) -> Tensor:
        """The central weights: what is evaluated."""
        return to_tensor(ray.get(self._server.center.remote()))

    def _exchange(self) -> float:
        before = time.perf_counter()
        with self._exchange_lock:
            at = self.iterations
            if self._slab is not None:
                self._slab.copy_(self._weights)
                ray.get(self._server.exchange_slab.remote(self._trainer))
                self._weights.sub_(self._slab)  # from the current weights: other threads moved on meanwhile
            else:
                difference = ray.get(self._server.exchange.remote(self._trainer, to_array(self._weights)))
                self._weights.sub_(to_tensor(difference))
            self.syncs += 1
            self._exchanged_at = at
            stalled = time.perf_counter() - before
            self.stall_s += stalled
        return stalled
