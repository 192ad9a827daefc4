"""Foreground EASGD: whichever thread completes a trainer's ``gap``-th iteration exchanges with the sync server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayActorError
from torch import Tensor

from services.identity import Address
from services.memory.region import Region
from services.sync_server.server import exchange_slab_layout
from services.transport.messages import to_array, to_tensor


class ForegroundEasgd:
    """``Synchronizer`` until ShadowSync takes it out of the loop (ShadowSync §2.3, FR-EASGD-k)."""

    def __init__(
        self,
        trainer: Address,
        server: Any,
        server_keeper: str | None,
        weights: Tensor,
        gap: int,
        find: Callable[[], Any | None],
    ) -> None:
        """``server_keeper`` names the keeper this node shares with the server; ``None`` when it is on another node.

        ``find`` asks for the server's successor when it died; ``None`` while there is none.
        """
        self._trainer, self._server, self._weights, self._gap, self._find = trainer, server, weights, gap, find
        self._count_lock, self._exchange_lock = threading.Lock(), threading.Lock()
        self.iterations, self.syncs, self.stall_s = 0, 0, 0.0
        self._exchanged_at = 0
        self._slab: Tensor | None = None
        self._slab_name = f"{trainer}/sync"
        if server_keeper is not None:
            region = Region.create(
                server_keeper, self._slab_name, exchange_slab_layout(trainer, weights.numel()), trainer.generation
            )
            region.mark_ready()
            self._slab = region.arrays["weights"]
            try:
                if server is not None:
                    self._attach()
            except RayActorError:  # its successor is asked for with the first exchange
                self._server = None

    def after_step(self) -> float:
        """Exchange when due; returns the seconds it took."""
        with self._count_lock:
            self.iterations += 1
            due = self.iterations % self._gap == 0
        return self._exchange() if due else 0.0

    def settle(self) -> float:
        """Bring the last iterations to the centre, if there were any since the last exchange."""
        return self._exchange() if self.iterations > self._exchanged_at else 0.0

    def center(self, held: bool = False) -> Tensor:
        """The central weights: what is evaluated; ``held``: as they were at the cut of the last consistent save.

        Without a server, this replica's.
        """
        with self._exchange_lock:
            try:
                if self._server is not None:
                    call = self._server.held_center if held else self._server.center
                    return to_tensor(ray.get(call.remote()))
            except RayActorError:
                if held:
                    raise
                self._server = None
        return self._weights.clone()

    def _exchange(self) -> float:
        before = time.perf_counter()
        with self._exchange_lock:
            at = self.iterations
            try:
                if self._server is not None or self._rejoin():
                    self._exchange_with_server()
                    self.syncs += 1
                    self._exchanged_at = at
            except RayActorError:  # training goes on without a centre, until its successor is found
                self._server = None
            stalled = time.perf_counter() - before
            self.stall_s += stalled
        return stalled

    def _exchange_with_server(self) -> None:
        if self._slab is not None:
            self._slab.copy_(self._weights)
            ray.get(self._server.exchange_slab.remote(self._trainer))
            self._weights.sub_(self._slab)  # from the current weights: other threads moved on meanwhile
        else:
            difference = ray.get(self._server.exchange.remote(self._trainer, to_array(self._weights)))
            self._weights.sub_(to_tensor(difference))

    def _rejoin(self) -> bool:
        """Whether the server's successor is there by now."""
        self._server = self._find()
        if self._server is not None and self._slab is not None:
            self._attach()
        return self._server is not None

    def _attach(self) -> None:
        ray.get(self._server.attach_slab.remote(self._trainer, self._slab_name))
