"""A restore's work grows with the tables, not with tables times segments."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path

import torch

from checkpoint.restore import restore
from checkpoint.store import CheckpointStore
from tests.checkpoint.saves import Table, write_save
from tests.checkpoint.small_run import newest_chain

DELTAS = 4


def _calls(url: Path, count: int) -> int:
    """Function calls of one restore of ``count`` small tables from a full save and its deltas."""
    generator = torch.Generator().manual_seed(count)
    tables = [Table.random(f"t{index}", 10, 4, "exact_row_wise_adagrad", generator) for index in range(count)]
    specs = {table.name: table.spec for table in tables}
    parent = None
    for number in range(1 + DELTAS):
        save_id = f"0000-{number + 1:08d}-{'delta' if number else 'full'}"
        ids = torch.tensor([0, number]) if number else None
        for table in tables if ids is not None else ():
            table.weight[ids] += number
        shard = [table.cut(table.piece(0, 10), ids, cut=1 + number) for table in tables]
        write_save(url, save_id, specs, [shard], parent=parent)
        parent = save_id
    store = CheckpointStore(str(url), run="r")
    chain = newest_chain(store)
    into = [table.room(table.piece(0, 10)) for table in tables]
    profile = cProfile.Profile()
    report = profile.runcall(restore, store, chain, into)
    for table, rows in zip(tables, into, strict=True):
        table.assert_equal(rows)
    assert list(report.rows_by_save.values()) == [count * rows for rows in (5, 1, 1, 1, 2)]
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_four_times_the_tables_take_four_times_the_calls(tmp_path: Path) -> None:
    _calls(tmp_path / "warm", 1)
    few, many = _calls(tmp_path / "few", 40), _calls(tmp_path / "many", 160)
    assert many <= 4.2 * few, (few, many)
