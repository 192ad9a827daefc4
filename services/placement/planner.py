"""Placement: which shard owns which rows and columns, within each node's memory budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from checkpoint.piece import Piece
from services.placement.constraints import Constraints, constraints
from services.placement.memory import MemoryCost, MemoryEstimate, cost_of, readable, total
from services.placement.placement import Placement, PlacementError, Sharding
from services.placement.refusal import refusal
from services.placement.tables import TableSpec
from trainer.config import EmbeddingConfig

if TYPE_CHECKING:
    from services.placement.torchrec_planner import Block

    _Blocks = dict[str, list[Block]]


def plan_placement(
    tables: Sequence[TableSpec],
    embedding: EmbeddingConfig,
    shards_per_node: Sequence[int],
    budget_bytes_per_node: Sequence[int],
) -> Placement:
    """Place every row of every table on one shard; equal inputs give equal placements.

    Tables are placed whole, evenly over the shards. Under ``auto`` the largest are split by rows when the memory needs
    it, or when a shard would otherwise own nothing. ``embedding.sharding`` and ``embedding.tables`` decide otherwise,
    and alone ask for columns; a table too small to give every shard a row, or too narrow to cut, is never split.

    Args:
        tables: T tables, of unique names.
        embedding: optimizer and placement constraints.
        shards_per_node: number of shards on each node; shard ids count through the nodes in order.
        budget_bytes_per_node: what each node may spend on rows, optimizer state and counters; its shards share it
            evenly.

    Raises:
        PlacementError: the tables do not fit or the settings contradict each other; says by how much and what to do.
    """
    _check_nodes(shards_per_node, budget_bytes_per_node)
    shards = sum(shards_per_node)
    bounds = constraints(tables, embedding, shards)
    if not tables:
        return _placement((), {}, embedding, shards_per_node, budget_bytes_per_node)

    costs = {table.name: _table_cost(table, embedding, bounds) for table in tables}
    refuse = partial(
        refusal,
        tables=tables,
        costs=costs,
        embedding=embedding,
        shards_per_node=shards_per_node,
        budget_bytes_per_node=budget_bytes_per_node,
    )
    need = total(costs.values()).total_bytes
    budget = sum(size for size, count in zip(budget_bytes_per_node, shards_per_node, strict=True) if count)
    if need > budget:
        raise refuse(
            f"The embedding tables do not fit: they need {readable(need)} ({need} bytes), the nodes with shards may "
            f"spend {readable(budget)} ({budget} bytes)."
        )
    per_shard = [
        size // count for size, count in zip(budget_bytes_per_node, shards_per_node, strict=True) for _ in range(count)
    ]
    blocks = _plan(tables, embedding, bounds, per_shard)
    if blocks is None:
        raise refuse(_why_no_plan(costs, bounds, max(per_shard)))
    return _placement(tables, blocks, embedding, shards_per_node, budget_bytes_per_node)


def _check_nodes(shards_per_node: Sequence[int], budget_bytes_per_node: Sequence[int]) -> None:
    if len(shards_per_node) != len(budget_bytes_per_node):
        raise PlacementError(f"{len(shards_per_node)} nodes with shards, but {len(budget_bytes_per_node)} budgets")
    if sum(shards_per_node) < 1 or min(shards_per_node) < 0 or min(budget_bytes_per_node) < 0:
        raise PlacementError(
            f"at least one shard is needed (cluster.shards) and no count or budget may be negative, got shards "
            f"{list(shards_per_node)} and budgets {list(budget_bytes_per_node)} bytes per node"
        )


def _cost_of(rows: int, dim: int, embedding: EmbeddingConfig) -> MemoryCost:
    return cost_of(rows, dim, embedding.optimizer, embedding.weights_precision)


def _table_cost(table: TableSpec, embedding: EmbeddingConfig, bounds: Constraints) -> MemoryCost:
    """Column-wise, every piece has row-wise state and counters of its own."""
    width = bounds.piece_columns.get(table.name, table.dim)
    return total([_cost_of(table.rows, width, embedding)] * (table.dim // width))


def _plan(
    tables: Sequence[TableSpec],
    embedding: EmbeddingConfig,
    bounds: Constraints,
    budget_bytes_per_shard: Sequence[int],
) -> _Blocks | None:
    from services.placement.torchrec_planner import plan_blocks  # over a second: only where a plan is made

    def bytes_of(rows: int, dim: int) -> int:
        return _cost_of(rows, dim, embedding).total_bytes

    plan = partial(plan_blocks, tables, bounds.allowed, bounds.piece_columns, budget_bytes_per_shard, bytes_of)
    blocks = plan(split_at_least=0)
    splittable = any(len(kinds) > 1 for kinds in bounds.allowed.values())
    if blocks is not None and splittable and _owners(blocks) < len(budget_bytes_per_shard):
        spread = plan(split_at_least=1)
        if spread is not None and _owners(spread) > _owners(blocks):
            return spread
    return blocks


def _owners(blocks: _Blocks) -> int:
    return len({block.shard_id for owned in blocks.values() for block in owned})


def _why_no_plan(costs: Mapping[str, MemoryCost], bounds: Constraints, largest_budget_bytes: int) -> str:
    for table, cost in costs.items():
        if bounds.allowed[table] == ("table_wise",) and cost.total_bytes > largest_budget_bytes:
            return (
                f"Table {table!r} does not fit: it stays whole ({readable(cost.total_bytes)}) but one shard may spend "
                f"{readable(largest_budget_bytes)}, its node's budget over the node's shards; allow row_wise for it "
                "(embedding.tables, embedding.sharding) or lower cluster.shards."
            )
    return (
        "The embedding tables fit the nodes' memory in sum, but TorchRec's planner found no placement that keeps every "
        f"shard within its part of its node's budget (at most {readable(largest_budget_bytes)})."
    )


def _placement(
    tables: Sequence[TableSpec],
    blocks: _Blocks,
    embedding: EmbeddingConfig,
    shards_per_node: Sequence[int],
    budget_bytes_per_node: Sequence[int],
) -> Placement:
    pieces: dict[int, list[Piece]] = {shard_id: [] for shard_id in range(sum(shards_per_node))}
    sharding: dict[str, Sharding] = {}
    costs: dict[str, MemoryCost] = {}
    for table in tables:
        owned = sorted(blocks[table.name], key=lambda block: block[1:])
        if len(owned) == 1:
            sharding[table.name] = "table_wise"
        else:
            sharding[table.name] = "row_wise" if owned[0].row_end < table.rows else "column_wise"
        for shard_id, *ranges in owned:
            pieces[shard_id].append(Piece(table.name, *ranges))
        costs[table.name] = total(
            _cost_of(block.row_end - block.row_start, block.col_end - block.col_start, embedding) for block in owned
        )

    shards = {
        shard_id: total(_cost_of(piece.rows, piece.dim, embedding) for piece in owned)
        for shard_id, owned in pieces.items()
    }
    nodes, first = [], 0
    for count in shards_per_node:
        nodes.append(total(shards[shard_id] for shard_id in range(first, first + count)))
        first += count
    memory = MemoryEstimate(costs, shards, tuple(nodes), tuple(budget_bytes_per_node))
    return Placement({shard_id: tuple(owned) for shard_id, owned in pieces.items()}, sharding, memory)
