"""The trainer as a Ray actor. Light to import (see ``services.shard.actor``): its own process imports the rest."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import ray

from services.identity import Address
from services.lease import Lease
from services.memory.process import identify

if TYPE_CHECKING:
    from services.trainer.core import TrainerCore
    from services.trainer.spec import TrainerSpec
    from services.transport.messages import Array
    from trainer.data.dataset import Dataset
    from trainer.data.encoder import FeatureEncoders

_KEPT_BYTES = 512 << 20
"""Freed memory a trainer keeps for its next steps; activations of B=8192 are some 100 MiB a thread."""


@ray.remote(max_restarts=0, concurrency_groups={"watch": 1, "control": 2})
class Trainer:
    """One dense replica and its threads. ``run`` blocks for the whole of the training."""

    def __init__(self, address: Address, keeper: str, coordinator: Any, heartbeat_s: float, lease_s: float) -> None:
        import torch

        import services.trainer.core  # noqa: F401  imported here, so that an idle trainer is ready
        from services.allocator import keep_freed_memory

        keep_freed_memory(_KEPT_BYTES)
        torch.set_num_threads(1)  # Hogwild threads are the parallelism
        self._address, self._keeper, self._coordinator = Address(*address), keeper, coordinator
        self._core: TrainerCore | None = None
        self._stopped = threading.Event()
        Lease(self._address, coordinator, heartbeat_s, lease_s, self._stats)

    def setup(self, spec: TrainerSpec, dataset: Dataset, encoders: FeatureEncoders) -> tuple[tuple[int, int], bool]:
        """Build replica, lines to the shards, readers; returns this process's identity and whether it adopted."""
        from services.trainer.core import TrainerCore

        self._core = TrainerCore(self._address, self._keeper, self._coordinator, spec, dataset, encoders)
        return identify(), self._core.adopted

    def dense_weights(self) -> Array:
        """A copy of the flat dense parameters, P float32."""
        assert self._core is not None
        return self._core.dense_weights()

    def run(self) -> dict[str, Any]:
        """Train until there is no more work; returns the last counters."""
        assert self._core is not None
        self._core.run()
        return self._stats()

    @ray.method(concurrency_group="control")
    def stop(self) -> None:
        """Leave the training loop at the next step."""
        if self._core is not None:
            self._core.stop()

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
            "adopted": core.adopted,
        }
