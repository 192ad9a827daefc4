"""Assignment of roles to nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.coordinator.nodes import Node, ResourceError, alive_nodes, assign, budgets


def nodes(*cpus: float) -> list[Node]:
    return [Node(f"n{index}", f"10.0.0.{index}", free, 10 << 30) for index, free in enumerate(cpus)]


@given(
    count=st.integers(1, 5),
    shards=st.integers(1, 12),
    trainers=st.integers(1, 12),
    first=st.integers(0, 4),
)
def test_roles_spread_evenly_where_there_is_room(count: int, shards: int, trainers: int, first: int) -> None:
    there = nodes(*[100.0] * count)
    chosen = f"n{first % count}"
    found = assign(there, chosen, shards=shards, trainers=trainers, shard_cpus=1.0, trainer_cpus=2.0)
    assert found.nodes[0].node_id == chosen and {node.node_id for node in found.nodes} == {n.node_id for n in there}
    assert (len(found.shards), len(found.trainers)) == (shards, trainers)
    for placed in (found.shards, found.trainers):
        loads = [placed.count(index) for index in range(count)]
        assert max(loads) - min(loads) <= 1 and list(placed) == sorted(placed)
    assert found.shards_per_node == [found.shards.count(index) for index in range(count)]
    assert found.sync_server == 0


@given(
    cpus=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    shards=st.integers(1, 5),
    trainers=st.integers(1, 5),
    shard_cpus=st.integers(0, 2),
    trainer_cpus=st.integers(0, 3),
)
def test_no_node_gets_more_than_it_has(
    cpus: list[int], shards: int, trainers: int, shard_cpus: int, trainer_cpus: int
) -> None:
    there = nodes(*map(float, cpus))
    try:
        found = assign(there, "n0", shards=shards, trainers=trainers, shard_cpus=shard_cpus, trainer_cpus=trainer_cpus)
    except ResourceError as error:
        assert f"need {shards * shard_cpus + trainers * trainer_cpus:g}" in str(error)
        assert f"have {sum(cpus):g} free" in str(error)
        return
    for index, node in enumerate(found.nodes):
        assert found.shards.count(index) * shard_cpus + found.trainers.count(index) * trainer_cpus <= node.cpus


def test_a_full_node_is_left_out() -> None:
    found = assign(nodes(1, 4), "n0", shards=2, trainers=2, shard_cpus=1.0, trainer_cpus=1.0)
    assert found.shards == (0, 1) and found.trainers == (1, 1)


def test_wide_trainers_are_placed_before_shards_take_their_room() -> None:
    found = assign(nodes(2, 1), "n0", shards=1, trainers=1, shard_cpus=1.0, trainer_cpus=2.0)
    assert (found.trainers, found.shards) == ((0,), (1,))


def test_the_refusal_has_the_numbers_and_the_settings() -> None:
    with pytest.raises(ResourceError) as caught:
        assign(nodes(2, 1.5), "n0", shards=2, trainers=2, shard_cpus=1.0, trainer_cpus=2.0)
    text = str(caught.value)
    assert "2 shards × 1 and 2 trainers × 2 CPUs need 6, 2 nodes have 3.5 free (2 + 1.5)" in text
    for setting in ("cluster.shards", "cluster.trainers", "cluster.shard_cpus", "cluster.trainer_cpus"):
        assert setting in text


def test_no_node_at_all_is_refused() -> None:
    with pytest.raises(ResourceError, match="0 nodes have 0 free"):
        assign([], "n0", shards=1, trainers=1, shard_cpus=1.0, trainer_cpus=1.0)


def test_only_living_nodes_count_and_with_what_is_free() -> None:
    def reported(node_id: str, alive: bool) -> dict[str, object]:
        resources = {"CPU": 8.0, "memory": 2e9} if alive else {}
        return {"NodeID": node_id, "NodeManagerAddress": f"at-{node_id}", "Alive": alive, "Resources": resources}

    found = alive_nodes([reported("a", True), reported("b", False), reported("c", True)], {"a": {"memory": 1e9}})
    assert found == [Node("a", "at-a", 0.0, 2_000_000_000), Node("c", "at-c", 8.0, 2_000_000_000)]


def test_a_node_may_spend_what_is_configured_or_most_of_its_memory() -> None:
    found = assign(nodes(9, 9), "n0", shards=2, trainers=1, shard_cpus=1.0, trainer_cpus=1.0)
    assert budgets(found, 12_345) == [12_345, 12_345]
    assert budgets(found, None) == [int(0.8 * (10 << 30))] * 2
