"""What the planner needs to know about one embedding table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableSpec:
    """Embedding table ``name`` of ``rows`` × ``dim`` weights."""

    name: str
    rows: int
    dim: int

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("an embedding table needs a name")
        if self.rows < 1:
            raise ValueError(f"table {self.name!r} has {self.rows} rows, at least 1 is needed (data.categories.rows)")
        if self.dim < 4 or self.dim % 4:
            raise ValueError(f"table {self.name!r}: model.embedding_dim must be a multiple of 4, got {self.dim}")
