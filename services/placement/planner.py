"""Placement: which shard owns which rows, within each node's memory budget."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import partial

from checkpoint.piece import Piece
from services.placement.memory import EmbeddingOptimizer, MemoryCost, MemoryEstimate, cost_of, readable, total
from services.placement.placement import Placement, PlacementError, Sharding
from services.placement.refusal import refusal
from services.placement.tables import TableSpec
from trainer.config import EmbeddingConfig

_Blocks = dict[str, list[tuple[int, int, int]]]


def plan_placement(
    tables: Sequence[TableSpec],
    embedding: EmbeddingConfig,
    shards_per_node: Sequence[int],
    budget_bytes_per_node: Sequence[int],
) -> Placement:
    """Place every row of every table on one shard; equal inputs give equal placements.

    Tables are placed whole, evenly over the shards. Under ``auto`` the largest are split by rows when the memory needs
    it, or when a shard would otherwise own nothing. ``embedding.sharding`` and ``embedding.tables`` decide otherwise;
    a table too small to give every shard a row is never split.

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
    allowed = _allowed_sharding(tables, embedding, shards)
    if not tables:
        return _placement((), {}, embedding.optimizer, shards_per_node, budget_bytes_per_node)

    refuse = partial(
        refusal,
        tables=tables,
        optimizer=embedding.optimizer,
        shards_per_node=shards_per_node,
        budget_bytes_per_node=budget_bytes_per_node,
    )
    need = total(cost_of(table.rows, table.dim, embedding.optimizer) for table in tables).total_bytes
    budget = sum(size for size, count in zip(budget_bytes_per_node, shards_per_node, strict=True) if count)
    if need > budget:
        raise refuse(
            f"The embedding tables do not fit: they need {readable(need)} ({need} bytes), the nodes with shards may "
            f"spend {readable(budget)} ({budget} bytes)."
        )
    per_shard = [
        size // count for size, count in zip(budget_bytes_per_node, shards_per_node, strict=True) for _ in range(count)
    ]
    blocks = _plan(tables, embedding.optimizer, allowed, per_shard)
    if blocks is None:
        raise refuse(_why_no_plan(tables, embedding.optimizer, allowed, max(per_shard)))
    return _placement(tables, blocks, embedding.optimizer, shards_per_node, budget_bytes_per_node)


def _check_nodes(shards_per_node: Sequence[int], budget_bytes_per_node: Sequence[int]) -> None:
    if len(shards_per_node) != len(budget_bytes_per_node):
        raise PlacementError(f"{len(shards_per_node)} nodes with shards, but {len(budget_bytes_per_node)} budgets")
    if sum(shards_per_node) < 1 or min(shards_per_node) < 0 or min(budget_bytes_per_node) < 0:
        raise PlacementError(
            f"at least one shard is needed (cluster.shards) and no count or budget may be negative, got shards "
            f"{list(shards_per_node)} and budgets {list(budget_bytes_per_node)} bytes per node"
        )


def _allowed_sharding(
    tables: Sequence[TableSpec], embedding: EmbeddingConfig, shards: int
) -> dict[str, tuple[Sharding, ...]]:
    names = [table.name for table in tables]
    if len(set(names)) < len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise PlacementError(f"table names must be unique, repeated: {', '.join(repeated)}")
    for name in embedding.tables:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f", did you mean {near[0]!r}?" if near else f"; the tables are {', '.join(names[:30])}"
            raise PlacementError(f"embedding.tables names {name!r}, which is no table of this run{hint}")

    allowed: dict[str, tuple[Sharding, ...]] = {}
    for table in tables:
        own = embedding.tables[table.name].sharding if table.name in embedding.tables else "auto"
        wish = embedding.sharding if own == "auto" else own
        if wish == "table_wise" or shards == 1:
            allowed[table.name] = ("table_wise",)
        elif _splits_evenly(table.rows, shards):
            allowed[table.name] = ("row_wise",) if wish == "row_wise" else ("table_wise", "row_wise")
        elif own == "row_wise":
            raise PlacementError(
                f"embedding.tables.{table.name}.sharding=row_wise: {table.rows} rows do not give each of {shards} "
                "shards a row range; use table_wise, or lower cluster.shards"
            )
        else:
            allowed[table.name] = ("table_wise",)
    return allowed


def _splits_evenly(rows: int, shards: int) -> bool:
    """Whether blocks of ⌈rows/shards⌉ rows, TorchRec's cut, leave no shard empty."""
    block = -(-rows // shards)
    return -(-rows // block) == shards


def _plan(
    tables: Sequence[TableSpec],
    optimizer: EmbeddingOptimizer,
    allowed: dict[str, tuple[Sharding, ...]],
    budget_bytes_per_shard: Sequence[int],
) -> _Blocks | None:
    from services.placement.torchrec_planner import plan_blocks  # over a second: only where a plan is made

    def bytes_of(rows: int, dim: int) -> int:
        return cost_of(rows, dim, optimizer).total_bytes

    blocks = plan_blocks(tables, allowed, budget_bytes_per_shard, bytes_of, split_at_least=0)
    splittable = any(len(kinds) > 1 for kinds in allowed.values())
    if blocks is not None and splittable and _owners(blocks) < len(budget_bytes_per_shard):
        spread = plan_blocks(tables, allowed, budget_bytes_per_shard, bytes_of, split_at_least=1)
        if spread is not None and _owners(spread) > _owners(blocks):
            return spread
    return blocks


def _owners(blocks: _Blocks) -> int:
    return len({shard_id for owned in blocks.values() for shard_id, _, _ in owned})


def _why_no_plan(
    tables: Sequence[TableSpec],
    optimizer: EmbeddingOptimizer,
    allowed: dict[str, tuple[Sharding, ...]],
    largest_budget_bytes: int,
) -> str:
    for table in tables:
        size = cost_of(table.rows, table.dim, optimizer).total_bytes
        if allowed[table.name] == ("table_wise",) and size > largest_budget_bytes:
            return (
                f"Table {table.name!r} does not fit: it stays whole ({readable(size)}) but one shard may spend "
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
    optimizer: EmbeddingOptimizer,
    shards_per_node: Sequence[int],
    budget_bytes_per_node: Sequence[int],
) -> Placement:
    pieces: dict[int, list[Piece]] = {shard_id: [] for shard_id in range(sum(shards_per_node))}
    sharding: dict[str, Sharding] = {}
    for table in tables:
        owned = sorted(blocks[table.name], key=lambda block: block[1])
        sharding[table.name] = "row_wise" if len(owned) > 1 else "table_wise"
        for shard_id, row_start, row_end in owned:
            pieces[shard_id].append(Piece(table.name, row_start, row_end, 0, table.dim))

    def cost(shard_id: int) -> MemoryCost:
        return total(cost_of(piece.rows, piece.dim, optimizer) for piece in pieces[shard_id])

    shards = {shard_id: cost(shard_id) for shard_id in pieces}
    nodes, first = [], 0
    for count in shards_per_node:
        nodes.append(total(shards[shard_id] for shard_id in range(first, first + count)))
        first += count
    memory = MemoryEstimate(
        tables={table.name: cost_of(table.rows, table.dim, optimizer) for table in tables},
        shards=shards,
        nodes=tuple(nodes),
        budget_bytes_per_node=tuple(budget_bytes_per_node),
    )
    return Placement({shard_id: tuple(owned) for shard_id, owned in pieces.items()}, sharding, memory)
