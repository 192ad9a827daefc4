"""The message of a refused placement: what is missing, where, and what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.placement.memory import MemoryCost, readable, total
from services.placement.placement import PlacementError
from services.placement.tables import TableSpec
from trainer.config import EmbeddingConfig

_LARGEST = 5


def refusal(
    headline: str,
    tables: Sequence[TableSpec],
    costs: Mapping[str, MemoryCost],
    embedding: EmbeddingConfig,
    shards_per_node: Sequence[int],
    budget_bytes_per_node: Sequence[int],
) -> PlacementError:
    """Build the error from what each table costs: headline, need and budget per node, largest tables, remedies.

    The need of a node is its fair share, as if all rows were spread evenly over all shards.
    """
    need = total(costs.values())
    lines = [headline, _breakdown(need, embedding)]
    for node, (shards, budget) in enumerate(zip(shards_per_node, budget_bytes_per_node, strict=True)):
        share = need.total_bytes * shards / sum(shards_per_node)
        lines.append(
            f"  node {node}: {shards} shard{'s' * (shards != 1)}, fair share {readable(share)}, "
            f"budget {readable(budget)}" + (f", short of {readable(share - budget)}" if share > budget else "")
        )
    lines.append("Largest tables:")
    by_size = sorted(tables, key=lambda table: -costs[table.name].total_bytes)
    for table in by_size[:_LARGEST]:
        size = costs[table.name].total_bytes
        lines.append(
            f"  {table.name}: {table.rows} rows × {table.dim}, {readable(size)} ({size / need.total_bytes:.0%})"
        )
    lines += ["Remedies:", *(f"  {number}. {text}" for number, text in enumerate(_remedies(embedding), 1))]
    return PlacementError("\n".join(lines))


def _breakdown(need: MemoryCost, embedding: EmbeddingConfig) -> str:
    return (
        f"Needed in all: {readable(need.total_bytes)} = weights {readable(need.weights_bytes)} + "
        f"{embedding.optimizer} state {readable(need.optimizer_bytes)} + access counters "
        f"{readable(need.counters_bytes)}."
    )


def _remedies(embedding: EmbeddingConfig) -> list[str]:
    remedies = [
        "raise cluster.memory_budget_bytes (per node), if the machines have more memory",
        "add nodes to the cluster and raise cluster.shards, so that each node holds less",
        "lower data.categories.rows, or data.features.<name>.rows of the largest tables; with encoding=vocabulary "
        "raise min_count",
        "lower model.embedding_dim, or with model.arch=dcnv2 embedding.tables.<name>.dim of the largest tables",
        "let tables be split: embedding.sharding=auto, no table_wise under embedding.tables",
    ]
    if embedding.weights_precision == "fp32":
        remedies.append("set embedding.weights_precision=fp16: half the weights, at the price of small updates")
    if embedding.optimizer == "exact_adagrad":
        remedies.append("set embedding.optimizer=exact_row_wise_adagrad: its state is one number a row")
    return remedies
