"""The trainer as a Ray actor. Light to import (see ``services.shard.actor``): its own process imports the rest."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import ray

from services.faults.phase_board import open_phase_board
from services.identity import Address
from services.lease import Lease
from services.memory.holdings import hand_over
from services.memory.process import identify

if TYPE_CHECKING:
    from checkpoint.manifest import FileEntry
    from checkpoint.ticket import SaveTicket
    from services.trainer.core import TrainerCore
    from services.trainer.dense_start import SavedAt
    from services.trainer.spec import TrainerSpec
    from services.transport.messages import Array
    from trainer.data.dataset import Dataset
    from trainer.data.encoder import FeatureEncoders

_KEPT_BYTES = 512 << 20
"""Freed memory a trainer keeps for its next steps; activations of B=8192 are some 100 MiB a thread."""


@ray.remote(max_restarts=0, concurrency_groups={"watch": 1, "control": 2, "save": 1, "ended": 1})
class Trainer:
    """One dense replica and its threads. ``run`` blocks for the whole of the training."""

    def __init__(
        self,
        address: Address,
        keeper: str,
        coordinator: Any,
        heartbeat_s: float,
        lease_s: float,
        board: str | None = None,
    ) -> None:
        address = Address(*address)
        import torch

        import services.trainer.core  # noqa: F401  imported here, so that an idle trainer is ready
        from services.allocator import keep_freed_memory

        keep_freed_memory(_KEPT_BYTES)
        torch.set_num_threads(1)  # Hogwild threads are the parallelism
        self._address, self._keeper, self._coordinator = address, keeper, coordinator
        self._board = board
        self._phases = open_phase_board(board, address.role, address.index, address.generation)
        self._core: TrainerCore | None = None
        self._stopped = threading.Event()
        self._end: Future[dict[str, Any]] = Future()
        self._lease = Lease(self._address, coordinator, heartbeat_s, lease_s, self._stats)

    def setup(self, spec: TrainerSpec, dataset: Dataset, encoders: FeatureEncoders) -> tuple[tuple[int, int], str]:
        """Build replica, lines and readers; returns this process's identity and where the replica is from."""
        from services.trainer.core import TrainerCore

        self._end = Future()
        self._core = TrainerCore(
            self._address, self._keeper, self._coordinator, spec, dataset, encoders, self._phases.poison_due
        )
        return identify(), self._core.dense_from

    @ray.method(concurrency_group="save")
    def center_weights(self, save: SavedAt | None) -> Array:
        """The dense parameters P float32 that a sync server starts with."""
        assert self._core is not None
        return self._core.center_weights(save)

    @ray.method(concurrency_group="save")
    def save_center(self, ticket: SaveTicket) -> FileEntry:
        """Write the sync server's copy into a save."""
        assert self._core is not None
        return self._core.save_center(ticket)

    def run(self) -> dict[str, Any]:
        """Train until there is no more work; returns the last counters."""
        assert self._core is not None
        try:
            self._core.run()
            self._end.set_result(self._stats())
        except BaseException as error:
            self._end.set_exception(error)
            raise
        return self._stats()

    @ray.method(concurrency_group="ended")
    def ended(self) -> dict[str, Any]:
        """Wait for the end of ``run``, and answer as it does: for a coordinator that did not start it."""
        return self._end.result()

    @ray.method(concurrency_group="control")
    def stop(self) -> None:
        """Leave the training loop at the next step."""
        if self._core is not None:
            self._core.stop()

    @ray.method(concurrency_group="control")
    def end_run(self) -> None:
        """As ``stop``, and wait until every thread has left."""
        if self._core is not None:
            self._core.end()

    def become(self, address: Address) -> None:
        """Be the next incarnation in the same process, once ``run`` has ended: ``setup`` follows."""
        self._core, self._address = None, Address(*address)
        self._phases = open_phase_board(self._board, "trainer", self._address.index, self._address.generation)
        self._lease.become(self._address)

    @ray.method(concurrency_group="control")
    def pause(self, hold_s: float, timeout_s: float) -> bool:
        """Stop at a batch edge for a consistent save; see ``TrainerCore.pause``."""
        return self._core is not None and self._core.pause(hold_s, timeout_s)

    @ray.method(concurrency_group="control")
    def resume(self) -> bool:
        """Go on after a pause; False when that was not held."""
        return self._core is not None and self._core.resume()

    @ray.method(concurrency_group="save")
    def save_dense(self, ticket: SaveTicket) -> FileEntry:
        """Write the dense state into a save."""
        assert self._core is not None
        return self._core.save_dense(ticket)

    @ray.method(concurrency_group="save")
    def dense_state(self) -> tuple[Array, Array]:
        """Copies of the flat dense parameters and their optimizer's state, for a new peer."""
        assert self._core is not None
        return self._core.dense_state()

    @ray.method(concurrency_group="control")
    def hand_over(self) -> int:
        """Give the node's new keeper the memory this process maps; returns how many regions."""
        return hand_over(self._keeper)

    @ray.method(concurrency_group="watch")
    def watch(self) -> None:
        """Pending until the trainer dies."""
        self._stopped.wait()

    def _stats(self) -> dict[str, Any]:
        core = self._core
        if core is None:
            return {}
        phases: dict[str, float] = {}
        for worker in core.workers:
            for phase, seconds in worker.phases.as_dict().items():
                phases[phase] = phases.get(phase, 0.0) + seconds
        sync = core.synchronizer
        return {
            "phases": phases,
            "steps": sum(worker.steps for worker in core.workers),
            "syncs": sync.syncs if sync else 0,
            "sync_stall_s": sync.stall_s if sync else 0.0,
        }
