"""Bytes that embedding rows take: per piece, table, shard and node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from checkpoint.piece import Piece
from trainer.config import EmbeddingConfig

EmbeddingOptimizer = Literal["exact_sgd", "exact_adagrad", "exact_row_wise_adagrad"]

WeightsPrecision = Literal["fp32", "fp16"]

_FLOAT_BYTES = 4
_WEIGHT_BYTES = {"fp32": 4, "fp16": 2}
_COUNTER_BYTES = 4


@dataclass(frozen=True, slots=True)
class MemoryCost:
    """Bytes of weights, of optimizer state (float32), and of one access counter per row."""

    weights_bytes: int = 0
    optimizer_bytes: int = 0
    counters_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All three together."""
        return self.weights_bytes + self.optimizer_bytes + self.counters_bytes

    def __add__(self, other: MemoryCost) -> MemoryCost:
        return MemoryCost(
            self.weights_bytes + other.weights_bytes,
            self.optimizer_bytes + other.optimizer_bytes,
            self.counters_bytes + other.counters_bytes,
        )


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What a placement takes, printed before a run starts.

    ``nodes`` and ``budget_bytes_per_node`` are in node order; both count every shard of the node.
    """

    tables: Mapping[str, MemoryCost]
    shards: Mapping[int, MemoryCost]
    nodes: tuple[MemoryCost, ...]
    budget_bytes_per_node: tuple[int, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes on all nodes together."""
        return total(self.nodes).total_bytes


def cost_of(
    rows: int, dim: int, optimizer: EmbeddingOptimizer, weights_precision: WeightsPrecision = "fp32"
) -> MemoryCost:
    """Bytes of ``rows`` × ``dim`` weights: Adagrad keeps one sum per weight, row-wise Adagrad one per row, SGD none."""
    state_floats = {"exact_sgd": 0, "exact_adagrad": rows * dim, "exact_row_wise_adagrad": rows}[optimizer]
    weights_bytes = rows * dim * _WEIGHT_BYTES[weights_precision]
    return MemoryCost(weights_bytes, state_floats * _FLOAT_BYTES, rows * _COUNTER_BYTES)


def piece_bytes(piece: Piece, embedding: EmbeddingConfig) -> int:
    """Bytes of a piece's rows and optimizer state."""
    cost = cost_of(piece.rows, piece.dim, embedding.optimizer, embedding.weights_precision)
    return cost.weights_bytes + cost.optimizer_bytes


def total(costs: Iterable[MemoryCost]) -> MemoryCost:
    """Sum, zero for none."""
    return sum(costs, MemoryCost())


def readable(size_bytes: float) -> str:
    """Bytes for a person: ``1.50 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.2f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.2f} TiB"
