"""On which node each role goes: a pure assignment over the nodes Ray reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_BUDGET_SHARE = 0.8


class ResourceError(RuntimeError):
    """The cluster cannot hold the run's actors; waiting would not help."""


@dataclass(frozen=True, slots=True)
class Node:
    """A living node: Ray id, address for people, CPUs not in use, memory Ray manages there."""

    node_id: str
    name: str
    cpus: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """Nodes in use and, by role instance, the index of its node."""

    nodes: tuple[Node, ...]
    shards: tuple[int, ...]
    trainers: tuple[int, ...]
    sync_server: int

    @property
    def shards_per_node(self) -> list[int]:
        """Number of shards on each node; shard ids count through the nodes in order."""
        return [self.shards.count(index) for index in range(len(self.nodes))]


def alive_nodes(reported: Sequence[dict[str, Any]], available: dict[str, dict[str, float]]) -> list[Node]:
    """Nodes from ``ray.nodes()`` and their free resources by node id."""
    nodes = []
    for node in reported:
        if node["Alive"]:
            free = available.get(node["NodeID"], node["Resources"])
            nodes.append(
                Node(
                    node["NodeID"],
                    node["NodeManagerAddress"],
                    float(free.get("CPU", 0.0)),
                    int(node["Resources"].get("memory", 0)),
                )
            )
    return nodes


def assign(
    nodes: Sequence[Node], first: str, *, shards: int, trainers: int, shard_cpus: float, trainer_cpus: float
) -> Assignment:
    """Spread shards and trainers evenly over the nodes, the node ``first`` (the coordinator's) leading.

    Raises:
        ResourceError: fewer CPUs are free than the roles reserve, or no node has enough for one of them.
    """
    ordered = sorted(nodes, key=lambda node: (node.node_id != first, node.node_id))
    free = [node.cpus for node in ordered]
    needed, offered = shards * shard_cpus + trainers * trainer_cpus, sum(free)
    per_node = " + ".join(f"{cpus:g}" for cpus in free)

    def place(count: int, cpus: float) -> list[int]:
        load, placed = [0] * len(ordered), []
        for _ in range(count):
            fitting = [index for index, cpu in enumerate(free) if cpu >= cpus]
            if not fitting:
                raise ResourceError(
                    f"{shards} shards × {shard_cpus:g} and {trainers} trainers × {trainer_cpus:g} CPUs need {needed:g},"
                    f" {len(ordered)} nodes have {offered:g} free ({per_node}): lower cluster.shards, "
                    "cluster.trainers, cluster.shard_cpus or cluster.trainer_cpus (train.hogwild_threads unless set), "
                    "or add nodes"
                )
            index = min(fitting, key=lambda i: (load[i], i))
            load[index] += 1
            free[index] -= cpus
            placed.append(index)
        return sorted(placed)

    # The role that needs more CPUs first: the other one fits into what is left.
    if shard_cpus >= trainer_cpus:
        placed_shards = place(shards, shard_cpus)
        placed_trainers = place(trainers, trainer_cpus)
    else:
        placed_trainers = place(trainers, trainer_cpus)
        placed_shards = place(shards, shard_cpus)
    return Assignment(tuple(ordered), tuple(placed_shards), tuple(placed_trainers), 0)


def budgets(assignment: Assignment, configured_bytes: int | None) -> list[int]:
    """Bytes each node may spend on embedding rows, optimizer state and counters."""
    return [configured_bytes or int(_BUDGET_SHARE * node.memory_bytes) for node in assignment.nodes]
