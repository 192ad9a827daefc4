"""The centre behind the sync server: both ways of exchanging, and generations of trainers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from services.identity import Address, StaleGenerationError
from services.memory.region import Region
from services.memory.store import MemoryStore
from services.sync_server.server import CenterServer, exchange_slab_layout

_NUMEL, _ALPHA = 5000, 0.3
_START = np.random.default_rng(0).standard_normal(_NUMEL, dtype=np.float32)


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    store = MemoryStore(f"test-{os.getpid()}-center")
    yield store
    store.close()


@pytest.fixture
def server(store: MemoryStore) -> CenterServer:
    server = CenterServer(store.name)
    server.load(_START, _ALPHA)
    return server


def _slab(store: MemoryStore, server: CenterServer, trainer: Address) -> torch.Tensor:
    name = f"{trainer}/sync"
    region = Region.create(store.name, name, exchange_slab_layout(trainer, _NUMEL), trainer.generation)
    region.mark_ready()
    server.attach_slab(trainer, name)
    return region.arrays["weights"]


def _mapped(name: str) -> bool:
    return f"memfd:penumbra:{name} " in Path("/proc/self/maps").read_text()


def test_slab_object_and_plain_arithmetic_agree(store: MemoryStore, server: CenterServer) -> None:
    by_object = CenterServer(store.name)
    by_object.load(_START, _ALPHA)
    trainers = [Address("trainer", 0, 1), Address("trainer", 1, 4)]
    slabs = [_slab(store, server, trainer) for trainer in trainers]
    rng = np.random.default_rng(1)
    center = _START.astype(np.float64)
    for turn in range(6):
        snapshot = rng.standard_normal(_NUMEL, dtype=np.float32)
        trainer, slab = trainers[turn % 2], slabs[turn % 2]
        slab.copy_(torch.from_numpy(snapshot))
        server.exchange_slab(trainer)
        kept = snapshot.copy()
        difference = by_object.exchange(trainer, snapshot)
        assert np.array_equal(snapshot, kept), "the caller's array is only read"
        assert np.array_equal(slab.numpy(), difference)
        expected = _ALPHA * (snapshot - center)
        center += expected
        np.testing.assert_allclose(difference, expected, atol=1e-5)
    assert np.array_equal(server.center(), by_object.center())
    np.testing.assert_allclose(server.center(), center, atol=1e-5)


def test_loading_takes_a_copy(server: CenterServer) -> None:
    kept = _START.copy()
    server.exchange(Address("trainer", 0, 1), np.ones(_NUMEL, np.float32))
    assert np.array_equal(_START, kept)
    assert not np.array_equal(server.center(), kept)


def test_an_older_trainer_moves_nothing(store: MemoryStore, server: CenterServer) -> None:
    old, young = Address("trainer", 1, 2), Address("trainer", 1, 3)
    _slab(store, server, old)
    server.exchange(young, _START)  # the first word of the successor, whichever call it is
    before = server.center().copy()
    refusals = (
        lambda: server.exchange(old, np.ones(_NUMEL, np.float32)),
        lambda: server.exchange_slab(old),
        lambda: server.attach_slab(old, f"{old}/sync"),
    )
    for refused in refusals:
        with pytest.raises(StaleGenerationError, match="trainer 1 carries generation 2, the current one is 3"):
            refused()
    assert np.array_equal(server.center(), before)
    server.exchange(Address("trainer", 0, 1), _START)  # another trainer's generations are its own


@pytest.mark.parametrize("first_word", ["attach", "exchange"])
def test_a_successor_ends_the_mapping_of_its_predecessors_slab(
    store: MemoryStore, server: CenterServer, first_word: str
) -> None:
    old, young, other = Address("trainer", 0, 1), Address("trainer", 0, 2), Address("trainer", 1, 1)
    for trainer in (old, other):
        _slab(store, server, trainer).fill_(1.0)  # this test's own mapping ends here
    assert _mapped(f"{old}/sync")
    if first_word == "attach":
        _slab(store, server, young).copy_(torch.from_numpy(_START))
        server.exchange_slab(young)
    else:
        server.exchange(young, _START)
    assert not _mapped(f"{old}/sync")
    server.exchange_slab(other)
    np.testing.assert_allclose(server.center(), _START + _ALPHA * (1 - _START), atol=1e-6)
