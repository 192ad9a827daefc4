"""Where successors go, on a real node beside nodes that are gone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
import ray

from services.config import RunConfig
from services.coordinator.directory import Directory, Entry
from services.coordinator.launch import Launcher
from services.coordinator.places import NoPlaceError, Places
from services.identity import Address, Role
from tests.services.ray_parts import private_ray

GONE, ALSO_GONE = "f" * 56, "e" * 56


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    with private_ray():
        yield ray.get_runtime_context().get_node_id()


def places(node: str, budget: int, *held: Entry) -> tuple[Places, Directory]:
    directory = Directory()
    for entry in held:
        directory.put(entry)
    launcher = Launcher(f"places-{uuid.uuid4().hex[:8]}", None, directory, RunConfig())
    launcher.keeper(0, node)
    sizes = {0: 100, 1: 200, 2: 400}
    return Places(directory, launcher, {node: budget, GONE: 10_000}, sizes.__getitem__), directory


def entry(role: Role, index: int, node_id: str) -> Entry:
    return Entry(Address(role, index, 1), None, node_id)


def test_its_own_node_while_that_lives(node: str) -> None:
    found, _ = places(node, 1)  # it was there, so there is room
    assert found.for_shard(entry("shard", 2, node)) == node
    assert found.for_trainer(entry("trainer", 0, node)) == node
    assert found.for_spare(entry("spare", 0, node)) == node


def test_a_living_node_with_room_when_its_own_died(node: str) -> None:
    found, _ = places(node, 300, entry("shard", 0, node))
    assert found.for_shard(entry("shard", 1, GONE)) == node
    assert found.for_trainer(entry("trainer", 0, GONE)) == node
    assert found.for_spare(entry("spare", 0, GONE)) is None


def test_no_room_is_an_error_with_the_numbers(node: str) -> None:
    found, _ = places(node, 499, entry("shard", 0, node))
    with pytest.raises(NoPlaceError, match=r"shard 2 needs 400 bytes .* free on the living nodes: 399 \(cluster\.mem"):
        found.for_shard(entry("shard", 2, GONE))


def test_no_node_of_the_run_lives(node: str) -> None:
    directory = Directory()
    launcher = Launcher("nowhere", None, directory, RunConfig())
    found = Places(directory, launcher, {GONE: 100, ALSO_GONE: 100}, lambda shard_id: 10)
    with pytest.raises(NoPlaceError, match="none lives"):
        found.for_shard(entry("shard", 0, GONE))
    with pytest.raises(NoPlaceError, match=r"trainer-0\.g1: none of the run's nodes lives"):
        found.for_trainer(entry("trainer", 0, GONE))
