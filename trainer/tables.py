"""What the settings say about each embedding table, and the shape of the pooled rows that follows."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.config import EmbeddingConfig, ModelConfig, TableConfig

_AS_EVERYWHERE = TableConfig()


def table_dims(model: ModelConfig, embedding: EmbeddingConfig, tables: Sequence[str]) -> dict[str, int]:
    """Table → width D: its own, or ``model.embedding_dim``."""
    return {table: embedding.tables.get(table, _AS_EVERYWHERE).dim or model.embedding_dim for table in tables}


def mean_pooled(embedding: EmbeddingConfig, tables: Sequence[str]) -> tuple[bool, ...]:
    """For each table whether a sample's ids are averaged instead of summed."""
    return tuple(
        (embedding.tables.get(table, _AS_EVERYWHERE).pooling or embedding.pooling) == "mean" for table in tables
    )


def pooled_shape(batch: int, dims: Sequence[int]) -> tuple[int, ...]:
    """B×F×D where all F tables have one width, B×ΣD otherwise."""
    return (batch, len(dims), dims[0]) if len(set(dims)) == 1 else (batch, sum(dims))
