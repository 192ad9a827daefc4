"""A trainer's dense buffer in its keeper's memory: adopted by the successor, or made anew where it is incomplete."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from services.identity import Address, StaleGenerationError
from services.memory.descriptors import KeeperError
from services.memory.header import ArraySpec, HeaderError, Layout
from services.memory.region import Region
from services.memory.store import MemoryStore
from services.trainer.dense_memory import DenseMemory, region_name
from trainer.config import DenseConfig
from trainer.dense_optimizer import DenseOptimizer
from trainer.flat_parameters import FlatLayout

_MODULE = nn.Linear(5, 3)
_LAYOUT, _OPTIMIZER = FlatLayout.of(_MODULE), DenseOptimizer(DenseConfig(optimizer="adam"))
_FIRST, _SECOND = Address("trainer", 1, 1), Address("trainer", 1, 2)


@pytest.fixture
def keeper() -> Iterator[str]:
    store = MemoryStore(f"test-{os.getpid()}-dense")
    yield store.name
    store.close()


def _create(keeper: str, address: Address, optimizer: DenseOptimizer = _OPTIMIZER) -> DenseMemory:
    return DenseMemory.create(keeper, address, _MODULE, _LAYOUT, optimizer)


def test_it_starts_with_the_modules_weights_and_zero_state(keeper: str) -> None:
    memory = _create(keeper, _FIRST)
    expected = torch.empty(_LAYOUT.numel)
    _LAYOUT.copy_from(_MODULE, expected)
    assert torch.equal(memory.weights, expected)
    assert torch.equal(memory.state, torch.zeros(_OPTIMIZER.state_numel(_LAYOUT.numel)))


def test_sgd_has_no_state(keeper: str) -> None:
    assert _create(keeper, _FIRST, DenseOptimizer(DenseConfig(optimizer="sgd"))).state.numel() == 0


def test_the_successor_goes_on_with_weights_and_state(keeper: str) -> None:
    memory = _create(keeper, _FIRST)
    memory.weights.fill_(2.0)
    memory.state.fill_(3.0)
    adopted = DenseMemory.adopt(keeper, _SECOND, _LAYOUT)
    assert (adopted.weights == 2.0).all()
    assert (adopted.state == 3.0).all()
    with pytest.raises(StaleGenerationError):
        DenseMemory.adopt(keeper, _SECOND, _LAYOUT)


def test_memory_of_another_model_is_not_adopted(keeper: str) -> None:
    _create(keeper, _FIRST)
    with pytest.raises(ValueError, match=r"trainer-1\.g2: the memory .* holds a model of another shape"):
        DenseMemory.adopt(keeper, _SECOND, FlatLayout.of(nn.Linear(5, 4)))


def test_memory_that_was_never_complete_makes_room(keeper: str) -> None:
    """The former generation died between allocating and filling its memory."""
    unfinished = Layout("trainer-1", {"layout": _LAYOUT.to_json()}, {"weights": ArraySpec("float32", _LAYOUT.numel)})
    Region.create(keeper, region_name(_FIRST), unfinished, 1)
    _create(keeper, Address("trainer", 10, 1)).weights.fill_(7.0)
    with pytest.raises(HeaderError, match="died before the memory was complete"):
        DenseMemory.adopt(keeper, _SECOND, _LAYOUT)
    with pytest.raises(KeeperError, match="already holds"):
        _create(keeper, _SECOND)
    DenseMemory.discard(keeper, _SECOND)
    assert _create(keeper, _SECOND).weights.any()
    assert (DenseMemory.adopt(keeper, Address("trainer", 10, 2), _LAYOUT).weights == 7.0).all()
