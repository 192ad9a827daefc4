"""Where every table goes and what that costs in memory: the answer of ``penumbra plan``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pydantic import BaseModel, ConfigDict

from checkpoint.piece import Piece
from services.placement.placement import Placement
from services.saves_report import SavesReport


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TablePlacement(_Part):
    """One embedding table.

    Attributes:
        table: its name.
        rows: number of rows.
        dim: embedding dimension D.
        placement: ``table_wise``, ``row_wise`` or ``column_wise``.
        shard_ids: the shards that own its pieces, in order of the pieces.
        weight_bytes: of all pieces.
        optimizer_bytes: optimizer state of all pieces.
        counter_bytes: access counters of all pieces.
    """

    table: str
    rows: int
    dim: int
    placement: str
    shard_ids: tuple[int, ...]
    weight_bytes: int
    optimizer_bytes: int
    counter_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Weights, optimizer state and counters."""
        return self.weight_bytes + self.optimizer_bytes + self.counter_bytes


class NodeMemory(_Part):
    """What one node's shards need against what the node may spend.

    Attributes:
        node: a name a person recognizes, such as its address.
        shard_ids: the shards on it.
        rows: embedding rows of those shards.
        needed_bytes: weights, optimizer state and counters.
        budget_bytes: ``cluster.memory_budget_bytes``, or the share of the node's memory that stands for it.
    """

    node: str
    shard_ids: tuple[int, ...]
    rows: int
    needed_bytes: int
    budget_bytes: int


class PlacementReport(_Part):
    """The placement of a run, and what a person should know about its number formats and saves."""

    tables: tuple[TablePlacement, ...]
    nodes: tuple[NodeMemory, ...]
    warnings: tuple[str, ...] = ()
    saves: SavesReport | None = None

    @property
    def total_bytes(self) -> int:
        """Of all tables."""
        return sum(table.total_bytes for table in self.tables)

    @property
    def fits(self) -> bool:
        """Whether every node's shards fit its budget."""
        return all(node.needed_bytes <= node.budget_bytes for node in self.nodes)


def placement_report(
    placement: Placement, node_names: Sequence[str], shards_per_node: Sequence[int], warnings: Sequence[str] = ()
) -> PlacementReport:
    """What a person or a program needs to know about ``placement``; shard ids count through the nodes in order."""
    owned: dict[str, list[tuple[Piece, int]]] = {table: [] for table in placement.sharding}
    for shard_id, pieces in placement.pieces.items():
        for piece in pieces:
            owned[piece.table].append((piece, shard_id))
    return PlacementReport(
        tables=tuple(_table(table, placement, sorted(pieces)) for table, pieces in owned.items()),
        nodes=tuple(_nodes(placement, node_names, shards_per_node)),
        warnings=tuple(warnings),
    )


def _table(table: str, placement: Placement, pieces: list[tuple[Piece, int]]) -> TablePlacement:
    cost = placement.memory.tables[table]
    return TablePlacement(
        table=table,
        rows=max(piece.row_end for piece, _ in pieces),
        dim=max(piece.col_end for piece, _ in pieces),
        placement=placement.sharding[table],
        shard_ids=tuple(shard_id for _, shard_id in pieces),
        weight_bytes=cost.weights_bytes,
        optimizer_bytes=cost.optimizer_bytes,
        counter_bytes=cost.counters_bytes,
    )


def _nodes(placement: Placement, node_names: Sequence[str], shards_per_node: Sequence[int]) -> Iterator[NodeMemory]:
    first = 0
    memory = placement.memory
    for name, count, cost, budget_bytes in zip(
        node_names, shards_per_node, memory.nodes, memory.budget_bytes_per_node, strict=True
    ):
        shard_ids = tuple(range(first, first + count))
        first += count
        yield NodeMemory(
            node=name,
            shard_ids=shard_ids,
            rows=_rows(piece for shard_id in shard_ids for piece in placement.pieces[shard_id]),
            needed_bytes=cost.total_bytes,
            budget_bytes=budget_bytes,
        )


def _rows(pieces: Iterable[Piece]) -> int:
    """Rows of a node's pieces; column pieces of the same rows count once."""
    return sum(end - start for _, start, end in {(piece.table, piece.row_start, piece.row_end) for piece in pieces})
