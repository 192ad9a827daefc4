"""Which kinds of sharding each table may get, from the settings and its shape."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.placement.placement import PlacementError, Sharding
from services.placement.tables import TableSpec
from trainer.config import EmbeddingConfig, TableConfig

_COLUMNS = 4
"""fbgemm wants widths that are multiples of this."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """What the planner may do.

    Attributes:
        allowed: table → kinds of sharding it may get.
        piece_columns: table → columns of each of its pieces, for column-wise ones.
    """

    allowed: Mapping[str, tuple[Sharding, ...]]
    piece_columns: Mapping[str, int]


def constraints(tables: Sequence[TableSpec], embedding: EmbeddingConfig, shards: int) -> Constraints:
    """Bring settings and shapes together.

    A wish for all tables (``embedding.sharding``) gives way where a table's shape forbids it; one for a single table
    does not.

    Raises:
        PlacementError: a name is repeated or unknown, or a table cannot be placed as its own setting asks.
    """
    _check_names([table.name for table in tables], embedding)
    allowed: dict[str, tuple[Sharding, ...]] = {}
    columns: dict[str, int] = {}
    for table in tables:
        settings = embedding.tables.get(table.name, TableConfig())
        own = settings.sharding
        wish = embedding.sharding if own == "auto" else own
        allowed[table.name] = ("table_wise",)
        if wish == "table_wise" or shards == 1:
            continue
        if wish == "column_wise":
            width = _piece_columns(table.dim, settings.min_partition or embedding.min_partition, shards)
            if width < table.dim:
                allowed[table.name] = ("column_wise",)
                columns[table.name] = width
            elif own == "column_wise":
                least = settings.min_partition or embedding.min_partition or _COLUMNS
                raise PlacementError(
                    f"embedding.tables.{table.name}.sharding=column_wise: {table.dim} columns do not cut into equal "
                    f"pieces of {least} or more; lower min_partition, or use table_wise or row_wise"
                )
        elif _splits_evenly(table.rows, shards):
            allowed[table.name] = ("row_wise",) if wish == "row_wise" else ("table_wise", "row_wise")
        elif own == "row_wise":
            raise PlacementError(
                f"embedding.tables.{table.name}.sharding=row_wise: {table.rows} rows do not give each of {shards} "
                "shards a row range; use table_wise, or lower cluster.shards"
            )
    return Constraints(allowed, columns)


def _check_names(names: Sequence[str], embedding: EmbeddingConfig) -> None:
    if len(set(names)) < len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise PlacementError(f"table names must be unique, repeated: {', '.join(repeated)}")
    for name in embedding.tables:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f", did you mean {near[0]!r}?" if near else f"; the tables are {', '.join(names[:30])}"
            raise PlacementError(f"embedding.tables names {name!r}, which is no table of this run{hint}")


def _splits_evenly(rows: int, shards: int) -> bool:
    """Whether blocks of ⌈rows/shards⌉ rows, TorchRec's cut, leave no shard empty."""
    block = -(-rows // shards)
    return -(-rows // block) == shards


def _piece_columns(dim: int, min_partition: int | None, shards: int) -> int:
    """TorchRec's cut: the first divisor of ``dim`` from ``min_partition`` on, in steps of 4; ``dim`` for none."""
    least = min_partition or -(-dim // shards // _COLUMNS) * _COLUMNS
    return next((width for width in range(least, dim, _COLUMNS) if dim % width == 0), dim)
