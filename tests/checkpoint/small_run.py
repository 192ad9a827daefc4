"""Three small tables and their full save, written by hand."""

from __future__ import annotations

from pathlib import Path

import torch

from checkpoint.chain import Chain, choose
from checkpoint.manifest import TableSpec
from checkpoint.store import CheckpointStore
from tests.checkpoint.saves import Rows, Table, row_wise, write_save

FULL, DELTA_2, DELTA_3, DELTA_4 = (
    "0000-00000001-full",
    "0000-00000002-delta",
    "0000-00000003-delta",
    "0000-00000004-delta",
)


def three_tables(optimizer: str = "exact_row_wise_adagrad") -> list[Table]:
    generator = torch.Generator().manual_seed(7)
    sizes = (("big", 1003, 12), ("small", 17, 8), ("one", 1, 4))
    return [Table.random(name, rows, dim, optimizer, generator) for name, rows, dim in sizes]


def specs_of(tables: list[Table]) -> dict[str, TableSpec]:
    return {table.name: table.spec for table in tables}


def save_full(
    url: Path, tables: list[Table], save_id: str = FULL, pieces: int = 4, **options: object
) -> CheckpointStore:
    shards: list[list[Rows]] = [[] for _ in range(pieces)]
    for table in tables:
        for shard, piece in enumerate(row_wise(table, pieces)):
            shards[shard].append(table.cut(piece))
    write_save(url, save_id, specs_of(tables), shards, **options)  # type: ignore[arg-type]
    return CheckpointStore(str(url), run="r")


def newest_chain(store: CheckpointStore, save_id: str | None = None) -> Chain:
    return choose(store.list(), save_id=save_id).chain
