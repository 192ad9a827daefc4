"""Regions: one memory seen by several mappings, taken over by generation."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from services.identity import StaleGenerationError
from services.memory.descriptors import KeeperError, request
from services.memory.header import ArraySpec, HeaderError, Layout
from services.memory.region import Region
from services.memory.store import MemoryStore

_LAYOUT = Layout(
    "shard-0",
    {"run": "r", "pieces": [1, 2]},
    {
        "a": ArraySpec("float32", 1000),
        "b": ArraySpec("bfloat16", 3),
        "c": ArraySpec("int64", 7),
        "d": ArraySpec("uint8", 5),
        "e": ArraySpec("int32", 2),
        "empty": ArraySpec("float32", 0),
    },
)


@pytest.fixture
def keeper() -> Iterator[str]:
    store = MemoryStore(f"test-{os.getpid()}-region")
    yield store.name
    store.close()


def test_new_memory_is_zero_and_of_the_declared_shape(keeper: str) -> None:
    region = Region.create(keeper, "shard-0/rows", _LAYOUT, generation=1)
    shapes = {name: (array.dtype, array.numel()) for name, array in region.arrays.items()}
    assert shapes == {
        "a": (torch.float32, 1000),
        "b": (torch.bfloat16, 3),
        "c": (torch.int64, 7),
        "d": (torch.uint8, 5),
        "e": (torch.int32, 2),
    }
    assert all(not array.any() for array in region.arrays.values())
    assert (region.generation, region.ready) == (1, False)


def test_two_mappings_are_one_memory(keeper: str) -> None:
    one = Region.create(keeper, "shard-0/rows", _LAYOUT, generation=1)
    two = Region.open(keeper, "shard-0/rows")
    assert two.layout == _LAYOUT
    for name, array in one.arrays.items():
        array.copy_(torch.arange(array.numel()) + 1)
        assert torch.equal(two.arrays[name], array)
    two.arrays["a"].mul_(2)
    assert torch.equal(one.arrays["a"], 2 * (torch.arange(1000.0) + 1))
    one.mark_ready()
    assert two.ready


def test_a_mapping_outlives_its_release(keeper: str) -> None:
    region = Region.create(keeper, "shard-0/rows", _LAYOUT, generation=1)
    region.arrays["c"].fill_(5)
    request(keeper, {"op": "release", "name": "shard-0/rows"})
    assert region.arrays["c"].tolist() == [5] * 7
    with pytest.raises(KeeperError, match="holds no memory"):
        Region.open(keeper, "shard-0/rows")


def test_memory_in_use_is_not_created_again(keeper: str) -> None:
    Region.create(keeper, "shard-0/rows", _LAYOUT, generation=1).arrays["c"].fill_(5)
    with pytest.raises(KeeperError, match="already holds"):
        Region.create(keeper, "shard-0/rows", _LAYOUT, generation=2)
    assert Region.open(keeper, "shard-0/rows").arrays["c"].tolist() == [5] * 7


def test_adoption_keeps_the_contents_and_names_the_new_writer(keeper: str) -> None:
    former = Region.create(keeper, "shard-0/rows", _LAYOUT, generation=1)
    former.arrays["c"].fill_(5)
    former.mark_ready()
    adopted = Region.adopt(keeper, "shard-0/rows", generation=3)
    assert adopted.arrays["c"].tolist() == [5] * 7
    assert (former.generation, adopted.generation, adopted.ready) == (3, 3, True)


@pytest.mark.parametrize("generation", [1, 2])
def test_adoption_by_the_same_or_an_older_generation_is_refused(keeper: str, generation: int) -> None:
    Region.create(keeper, "shard-0/rows", _LAYOUT, generation=2).mark_ready()
    with pytest.raises(StaleGenerationError, match=f"generation {generation}, the current one is 2"):
        Region.adopt(keeper, "shard-0/rows", generation)
    assert Region.open(keeper, "shard-0/rows").generation == 2


def test_unfinished_memory_is_not_adopted(keeper: str) -> None:
    Region.create(keeper, "shard-0/rows", _LAYOUT, generation=1)
    with pytest.raises(HeaderError, match="generation 1 died before the memory was complete"):
        Region.adopt(keeper, "shard-0/rows", generation=2)
    assert Region.open(keeper, "shard-0/rows").generation == 1


def test_memory_without_a_header_is_refused(keeper: str) -> None:
    _, fd = request(keeper, {"op": "create", "name": "raw", "bytes": 8192})
    assert fd is not None
    os.close(fd)
    with pytest.raises(HeaderError, match="expected b'PENUMBRA'"):
        Region.open(keeper, "raw")
    with pytest.raises(HeaderError):
        Region.adopt(keeper, "raw", generation=2)
