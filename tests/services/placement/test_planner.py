from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.placement.placement import Placement, PlacementError
from services.placement.planner import plan_placement
from services.placement.tables import TableSpec
from trainer.config import EmbeddingConfig

# Rows of the 26 tables of the Criteo Kaggle data set (DLRM, arXiv 1906.00091, without a frequency threshold).
# fmt: off
_KAGGLE = [
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
]
# fmt: on
_GIB = 2**30
_AUTO = EmbeddingConfig()


def _kaggle() -> list[TableSpec]:
    return [TableSpec(f"C{index}", rows, 16) for index, rows in enumerate(_KAGGLE, 1)]


def _check_every_row_once(placement: Placement, tables: Sequence[TableSpec]) -> None:
    order = {table.name: index for index, table in enumerate(tables)}
    for pieces in placement.pieces.values():
        keys = [(order[piece.table], piece.row_start, piece.col_start) for piece in pieces]
        assert keys == sorted(keys)
    for table in tables:
        mine = sorted(piece for pieces in placement.pieces.values() for piece in pieces if piece.table == table.name)
        if placement.sharding[table.name] == "column_wise":
            assert len(mine) > 1
            assert [piece.col_start for piece in mine] == [0, *(piece.col_end for piece in mine[:-1])]
            assert mine[-1].col_end == table.dim
            assert all((piece.row_start, piece.row_end) == (0, table.rows) for piece in mine)
            continue
        assert [piece.row_start for piece in mine] == [0, *(piece.row_end for piece in mine[:-1])]
        assert mine[-1].row_end == table.rows
        assert all((piece.col_start, piece.col_end) == (0, table.dim) for piece in mine)
        assert (placement.sharding[table.name] == "row_wise") == (len(mine) > 1)


def _check_within_budget(placement: Placement, shards_per_node: Sequence[int], optimizer: str) -> None:
    state_floats = {"exact_sgd": 0, "exact_adagrad": None, "exact_row_wise_adagrad": 1}[optimizer]
    first = 0
    for node, count in enumerate(shards_per_node):
        size = 0
        for shard_id in range(first, first + count):
            for piece in placement.pieces[shard_id]:
                size += piece.rows * (4 * piece.dim + 4 * (piece.dim if state_floats is None else state_floats) + 4)
        assert placement.memory.nodes[node].total_bytes == size
        assert size <= placement.memory.budget_bytes_per_node[node]
        first += count


@given(
    sizes=st.lists(st.integers(1, 5_000), min_size=1, max_size=12),
    shards_per_node=st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any),
    plenty=st.lists(st.floats(0.2, 3.0), min_size=3, max_size=3),
    equal_budgets=st.booleans(),
    optimizer=st.sampled_from(["exact_sgd", "exact_adagrad", "exact_row_wise_adagrad"]),
    sharding=st.sampled_from(["auto", "table_wise", "row_wise", "column_wise"]),
)
@settings(max_examples=150, deadline=None)
def test_every_row_is_placed_once_within_budget_or_the_plan_is_refused(
    sizes: list[int],
    shards_per_node: list[int],
    plenty: list[float],
    equal_budgets: bool,
    optimizer: str,
    sharding: str,
) -> None:
    tables = [TableSpec(f"table.{index}", rows, 4 + 4 * (index % 3)) for index, rows in enumerate(sizes)]
    embedding = EmbeddingConfig.model_validate({"optimizer": optimizer, "sharding": sharding})
    share = sum(table.rows * table.dim * 8 for table in tables) / len(shards_per_node)
    budgets = [int(share * plenty[0 if equal_budgets else node]) for node in range(len(shards_per_node))]
    try:
        placement = plan_placement(tables, embedding, shards_per_node, budgets)
    except PlacementError as error:
        assert "Remedies:" in str(error) and "cluster.memory_budget_bytes" in str(error)
        return
    assert sorted(placement.pieces) == list(range(sum(shards_per_node)))
    _check_every_row_once(placement, tables)
    _check_within_budget(placement, shards_per_node, optimizer)
    if sharding == "table_wise":
        assert set(placement.sharding.values()) == {"table_wise"}


@given(
    sizes=st.lists(st.integers(64, 5_000), min_size=1, max_size=12),
    shards=st.integers(1, 8),
    spare_bytes=st.integers(0, 20_000),
)
@settings(max_examples=60, deadline=None)
def test_auto_never_refuses_what_fits_when_everything_is_split(sizes: list[int], shards: int, spare_bytes: int) -> None:
    tables = [TableSpec(f"t{index}", rows, 8) for index, rows in enumerate(sizes)]
    most_per_shard = sum(-(-rows // shards) * (32 + 4 + 4) for rows in sizes)
    placement = plan_placement(tables, _AUTO, [shards], [shards * most_per_shard + spare_bytes])
    _check_every_row_once(placement, tables)
    _check_within_budget(placement, [shards], "exact_row_wise_adagrad")


def test_with_room_tables_stay_whole_and_spread_evenly() -> None:
    tables = _kaggle()
    placement = plan_placement(tables, _AUTO, [2, 2], [4 * _GIB, 4 * _GIB])
    _check_every_row_once(placement, tables)
    assert set(placement.sharding.values()) == {"table_wise"}
    assert sorted(len(pieces) for pieces in placement.pieces.values()) == [6, 6, 7, 7]
    assert placement.memory.total_bytes == sum(_KAGGLE) * (64 + 4 + 4)
    assert placement.memory.tables["C3"].weights_bytes == 10131227 * 64


def test_under_pressure_the_largest_tables_are_split_and_no_more() -> None:
    tables = _kaggle()
    need = sum(_KAGGLE) * 72
    placement = plan_placement(tables, _AUTO, [4], [need + 40_000_000])
    _check_every_row_once(placement, tables)
    _check_within_budget(placement, [4], "exact_row_wise_adagrad")
    split = [name for name, sharding in placement.sharding.items() if sharding == "row_wise"]
    whole = [table.rows for table in tables if table.name not in split]
    assert 1 <= len(split) < 10
    assert min(table.rows for table in tables if table.name in split) > max(whole)


def test_nodes_of_unequal_memory_share_rows_in_proportion() -> None:
    tables = [TableSpec("big", 30_000, 16)]
    placement = plan_placement(tables, _AUTO, [1, 1], [800_000, 1_600_000])
    _check_every_row_once(placement, tables)
    assert [pieces[0].rows for pieces in placement.pieces.values()] == [10_000, 20_000]


def test_one_shard_owns_everything() -> None:
    tables = _kaggle()
    placement = plan_placement(tables, EmbeddingConfig(sharding="row_wise"), [0, 1], [0, 4 * _GIB])
    assert [(piece.table, piece.rows) for piece in placement.pieces[0]] == [(t.name, t.rows) for t in tables]


def test_more_shards_than_tables_splits_the_largest_so_that_no_shard_idles() -> None:
    tables = [TableSpec("small", 3, 8), TableSpec("large", 1_000, 8), TableSpec("middle", 900, 8)]
    placement = plan_placement(tables, _AUTO, [3, 3], [_GIB, _GIB])
    _check_every_row_once(placement, tables)
    assert all(placement.pieces.values())
    assert placement.sharding == {"small": "table_wise", "large": "row_wise", "middle": "table_wise"}


def test_tables_too_small_to_split_leave_shards_empty() -> None:
    tables = [TableSpec("gender", 3, 8), TableSpec("flag", 2, 8)]
    placement = plan_placement(tables, _AUTO, [4], [_GIB])
    _check_every_row_once(placement, tables)
    assert sorted(len(pieces) for pieces in placement.pieces.values()) == [0, 0, 1, 1]


def test_no_tables_is_no_work() -> None:
    placement = plan_placement([], _AUTO, [2], [_GIB])
    assert placement.pieces == {0: (), 1: ()}
    assert placement.memory.total_bytes == 0


def test_settings_decide_and_the_table_outranks_the_run() -> None:
    tables = [TableSpec(name, 1_000, 8) for name in ("a", "b", "type")]
    embedding = EmbeddingConfig.model_validate(
        {"sharding": "row_wise", "tables": {"b": {"sharding": "table_wise"}, "type": {"sharding": "auto"}}}
    )
    placement = plan_placement(tables, embedding, [2], [_GIB])
    assert placement.sharding == {"a": "row_wise", "b": "table_wise", "type": "row_wise"}
    assert len(placement.pieces[0]) + len(placement.pieces[1]) == 5


def test_row_wise_for_the_run_spares_tables_with_fewer_rows_than_shards() -> None:
    tables = [TableSpec("genre", 3, 8), TableSpec("awkward", 5, 8), TableSpec("item", 100, 8)]
    placement = plan_placement(tables, EmbeddingConfig(sharding="row_wise"), [4], [_GIB])
    assert placement.sharding == {"genre": "table_wise", "awkward": "table_wise", "item": "row_wise"}
    _check_every_row_once(placement, tables)


def test_contradicting_settings_are_refused_by_name() -> None:
    tables = [TableSpec("user_id", 3, 8), TableSpec("item_id", 100, 8)]
    wrong = EmbeddingConfig.model_validate({"tables": {"user_di": {"sharding": "row_wise"}}})
    with pytest.raises(PlacementError, match=r"names 'user_di', .* did you mean 'user_id'\?"):
        plan_placement(tables, wrong, [2], [_GIB])
    too_small = EmbeddingConfig.model_validate({"tables": {"user_id": {"sharding": "row_wise"}}})
    with pytest.raises(PlacementError, match=r"embedding\.tables\.user_id\.sharding=row_wise: 3 rows .* 4 shards"):
        plan_placement(tables, too_small, [4], [_GIB])
    with pytest.raises(PlacementError, match="must be unique, repeated: user_id"):
        plan_placement([tables[0], tables[0]], _AUTO, [1], [_GIB])
    with pytest.raises(PlacementError, match=r"at least one shard is needed \(cluster\.shards\)"):
        plan_placement(tables, _AUTO, [0], [_GIB])
    with pytest.raises(PlacementError, match="2 nodes with shards, but 1 budgets"):
        plan_placement(tables, _AUTO, [1, 1], [_GIB])


def test_too_little_memory_is_refused_with_numbers_per_node() -> None:
    with pytest.raises(PlacementError) as refused:
        plan_placement(_kaggle(), _AUTO, [2, 2], [_GIB, _GIB + 1])
    text = str(refused.value)
    need = sum(_KAGGLE) * 72
    assert f"need 2.26 GiB ({need} bytes), the nodes with shards may spend 2.00 GiB ({2 * _GIB + 1} bytes)" in text
    assert "node 0: 2 shards, fair share 1.13 GiB, budget 1.00 GiB, short of 135.15 MiB" in text
    assert "C3: 10131227 rows × 16, 695.66 MiB (30%)" in text
    for setting in ("cluster.memory_budget_bytes", "cluster.shards", "data.categories.rows", "embedding.sharding"):
        assert setting in text


def test_a_table_that_may_not_be_split_and_fits_no_shard_is_named() -> None:
    whole = EmbeddingConfig(sharding="table_wise")
    with pytest.raises(PlacementError, match=r"Table 'C3' does not fit: it stays whole \(695.66 MiB\) but one shard"):
        plan_placement(_kaggle(), whole, [4], [int(2.5 * _GIB)])
    with pytest.raises(PlacementError, match="fit the nodes' memory in sum, but TorchRec's planner found no placement"):
        plan_placement(_kaggle(), whole, [2], [sum(_KAGGLE) * 72 + 1000])


def test_equal_between_processes_and_silent() -> None:
    """TorchRec keeps kinds of sharding in sets, whose order changes with the hash seed of the process."""
    script = (
        "from services.placement.planner import plan_placement\n"
        "from services.placement.tables import TableSpec\n"
        "from trainer.config import EmbeddingConfig\n"
        f"tables = [TableSpec(f'C{{i}}', rows, 16) for i, rows in enumerate({_KAGGLE}, 1)]\n"
        f"print(plan_placement(tables, EmbeddingConfig(), [4], [{sum(_KAGGLE) * 72 + 40_000_000}]))\n"
    )
    root = Path(__file__).parents[3]
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2", "3")
    ]
    outputs = [run.communicate(timeout=100) for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], outputs
    first = outputs[0][0]
    assert first.startswith("Placement(") and first.count("\n") == 1
    assert "row_wise" in first
    assert [stdout for stdout, _ in outputs] == [first] * 3


def _columns(placement: Placement, table: str) -> list[tuple[int, int]]:
    owned = [piece for pieces in placement.pieces.values() for piece in pieces if piece.table == table]
    assert {(piece.row_start, piece.row_end) for piece in owned} == {(0, 1_000)}
    return sorted((piece.col_start, piece.col_end) for piece in owned)


def test_columns_are_cut_as_asked_and_spread_over_the_shards() -> None:
    tables = [TableSpec("a", 1_000, 16), TableSpec("b", 1_000, 24), TableSpec("c", 1_000, 4), TableSpec("d", 1_000, 8)]
    embedding = EmbeddingConfig.model_validate(
        {"sharding": "column_wise", "tables": {"b": {"min_partition": 8}, "d": {"sharding": "table_wise"}}}
    )
    placement = plan_placement(tables, embedding, [2, 2], [_GIB, _GIB])
    assert placement.sharding == {"a": "column_wise", "b": "column_wise", "c": "table_wise", "d": "table_wise"}
    assert _columns(placement, "a") == [(0, 4), (4, 8), (8, 12), (12, 16)]  # as many pieces as shards
    assert _columns(placement, "b") == [(0, 8), (8, 16), (16, 24)]
    owned = [sum(piece.dim for piece in pieces) for pieces in placement.pieces.values()]
    assert sum(owned) == 16 + 24 + 4 + 8
    assert max(owned) - min(owned) <= 8


@pytest.mark.parametrize(("dim", "min_partition", "width"), [(48, 20, 24), (40, 4, 4), (64, None, 32), (48, 48, 48)])
def test_a_piece_has_min_partition_columns_or_the_next_divisor(dim: int, min_partition: int | None, width: int) -> None:
    """TorchRec's own rule; without the setting a third of the table each for three shards, or the next divisor."""
    embedding = EmbeddingConfig.model_validate({"sharding": "column_wise", "min_partition": min_partition})
    placement = plan_placement([TableSpec("a", 1_000, dim)], embedding, [3], [_GIB])
    assert _columns(placement, "a") == [(start, start + width) for start in range(0, dim, width)]


def test_the_estimate_of_column_pieces_counts_a_state_and_a_counter_per_row_and_piece() -> None:
    embedding = EmbeddingConfig(sharding="column_wise", min_partition=4)
    placement = plan_placement([TableSpec("a", 1_000, 16)], embedding, [2], [_GIB])
    cost = placement.memory.tables["a"]
    assert (cost.weights_bytes, cost.optimizer_bytes, cost.counters_bytes) == (64_000, 16_000, 16_000)
    assert placement.memory.total_bytes == cost.total_bytes
    with pytest.raises(PlacementError, match=r"need 93\.75 KiB \(96000 bytes\)"):
        plan_placement([TableSpec("a", 1_000, 16)], embedding, [2], [95_999])


def test_columns_that_cannot_be_cut_are_refused_where_asked_for_by_name() -> None:
    embedding = EmbeddingConfig.model_validate({"tables": {"a": {"sharding": "column_wise", "min_partition": 12}}})
    with pytest.raises(
        PlacementError, match=r"embedding\.tables\.a\.sharding=column_wise: 16 columns .* of 12 or more"
    ):
        plan_placement([TableSpec("a", 1_000, 16)], embedding, [2], [_GIB])


def test_fp16_rows_halve_the_weights() -> None:
    wide, narrow = (
        plan_placement(_kaggle(), EmbeddingConfig.model_validate({"weights_precision": kind}), [2], [4 * _GIB]).memory
        for kind in ("fp32", "fp16")
    )
    assert narrow.nodes[0].weights_bytes * 2 == wide.nodes[0].weights_bytes
    assert narrow.nodes[0].optimizer_bytes == wide.nodes[0].optimizer_bytes
    with pytest.raises(PlacementError, match=r"embedding\.weights_precision=fp16"):
        plan_placement(_kaggle(), _AUTO, [1], [_GIB])
