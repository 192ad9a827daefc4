"""Foreground EASGD against a real sync server and keeper: when it exchanges, and that both ways do the same."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from services.identity import Address, StaleGenerationError
from services.trainer.foreground_easgd import ForegroundEasgd
from services.transport.messages import to_array
from tests.services.ray_parts import private_ray

_NUMEL, _GAP = 4096, 4


class SyncService:
    """One node's keeper and its sync server."""

    def __init__(self) -> None:
        from services.keeper import Keeper
        from services.sync_server.actor import SyncServer

        self.keeper_name = f"test-{os.getpid()}-easgd"
        self.keeper: Any = Keeper.remote(Address("keeper", 0, 1), self.keeper_name, None, 1.0, 10.0)
        self.server: Any = SyncServer.options(num_cpus=0).remote(
            Address("sync_server", 0, 1), self.keeper_name, None, 1.0, 10.0
        )
        self._trainers = 0

    def load(self, weights: Tensor, alpha: float) -> None:
        """Another centre."""
        import ray

        ray.get([self.keeper.identity.remote(), self.server.load.remote(to_array(weights), alpha)])

    def easgd(self, weights: Tensor, transport: str, gap: int = _GAP) -> ForegroundEasgd:
        """What the next trainer has."""
        self._trainers += 1
        trainer = Address("trainer", self._trainers, 1)
        return ForegroundEasgd(
            trainer, self.server, self.keeper_name if transport == "slab" else None, weights, gap, lambda: None
        )


@pytest.fixture(scope="module")
def service() -> Iterator[SyncService]:
    with private_ray():
        yield SyncService()


@pytest.mark.parametrize("transport", ["slab", "object"])
def test_two_threads_exchange_at_every_fourth_iteration_of_both(service: SyncService, transport: str) -> None:
    alpha, steps = 0.02, 50
    center, weights = torch.zeros(_NUMEL), torch.rand(_NUMEL)
    before = weights.clone()
    service.load(center, alpha)
    easgd = service.easgd(weights, transport)
    stalls: list[list[float]] = [[], []]

    def work(own: list[float]) -> None:
        own.extend(easgd.after_step() for _ in range(steps))

    threads = [threading.Thread(target=work, args=(own,)) for own in stalls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    syncs = 2 * steps // _GAP
    assert (easgd.iterations, easgd.syncs) == (2 * steps, syncs)
    assert sum(seconds > 0 for own in stalls for seconds in own) == syncs
    assert easgd.stall_s == pytest.approx(sum(map(sum, stalls)))
    # Nobody trained meanwhile, so exactly that many exchanges, one after the other, lead here:
    apart = (1 - 2 * alpha) ** syncs * before
    torch.testing.assert_close(weights - easgd.center(), apart, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(weights + easgd.center(), before, atol=1e-5, rtol=0.0)


def _two_trainers(service: SyncService, transport: str) -> list[Tensor]:
    """Both replicas and the centre after some training in turns, each with an exchange after every second step."""
    start = torch.linspace(-1, 1, _NUMEL)
    service.load(start, 0.3)
    replicas = [start.clone(), start.clone()]
    easgd = [service.easgd(weights, transport, gap=2) for weights in replicas]
    generator = torch.Generator().manual_seed(5)
    for _ in range(5):
        for weights, synchronizer in zip(replicas, easgd, strict=True):
            for _ in range(2):
                weights.add_(torch.rand(_NUMEL, generator=generator) - 0.3)
                synchronizer.after_step()
    return [*replicas, easgd[0].center()]


def test_slab_object_and_plain_arithmetic_agree(service: SyncService) -> None:
    by_slab, by_object = _two_trainers(service, "slab"), _two_trainers(service, "object")
    for one, other in zip(by_slab, by_object, strict=True):
        assert torch.equal(one, other)
    center = np.linspace(-1, 1, _NUMEL)
    replicas = [center.copy(), center.copy()]
    generator = torch.Generator().manual_seed(5)
    for _ in range(5):
        for weights in replicas:
            for _ in range(2):
                weights += torch.rand(_NUMEL, generator=generator).numpy() - 0.3
            difference = 0.3 * (weights - center)
            weights -= difference
            center += difference
    for found, expected in zip(by_slab, [*replicas, center], strict=True):
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)
    assert not np.allclose(center, np.linspace(-1, 1, _NUMEL), atol=0.1), "the centre moved"


def test_an_older_trainer_is_refused_and_keeps_its_weights(service: SyncService) -> None:
    import ray

    weights = torch.ones(_NUMEL)
    service.load(torch.zeros(_NUMEL), 0.5)
    easgd = service.easgd(weights, "object", gap=1)
    successor = Address("trainer", service._trainers, 2)
    ray.get(service.server.exchange.remote(successor, np.zeros(_NUMEL, np.float32)))
    with pytest.raises(StaleGenerationError, match="generation 1, the current one is 2"):
        easgd.after_step()
    assert (easgd.syncs, weights.unique().tolist(), easgd.center().unique().tolist()) == (0, [1.0], [0.0])
