"""Rows come back bit by bit into any pieces, from the newest save that has them; what is damaged is refused or said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from checkpoint.chain import choose
from checkpoint.errors import CheckpointError, SaveIncomplete, SaveNotFound
from checkpoint.piece import Piece
from checkpoint.read_state import read_state
from checkpoint.restore import DamagedSave, restore, restore_newest
from checkpoint.store import CheckpointStore
from checkpoint.timelines import TimelineRecord
from tests.checkpoint.saves import Rows, Table, column_wise, row_wise, write_save
from tests.checkpoint.small_run import DELTA_2, DELTA_3, DELTA_4, FULL, newest_chain, save_full, specs_of, three_tables

OPTIMIZERS = ["exact_sgd", "exact_adagrad", "exact_row_wise_adagrad"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_four_shards_restore_bitwise_on_any_number(tmp_path: Path, optimizer: str, count: int) -> None:
    tables = three_tables(optimizer)
    store = save_full(tmp_path, tables)
    seen = 0
    for shard in range(count):
        into = [table.room(piece) for table in tables for piece in row_wise(table, count)[shard : shard + 1]]
        report = restore(store, newest_chain(store), into)
        for rows in into:
            next(table for table in tables if table.name == rows.piece.table).assert_equal(rows)
        seen += sum(report.rows_by_save.values())
    assert seen == 1003 + 17 + 1


@pytest.mark.parametrize("optimizer", ["exact_sgd", "exact_adagrad"])
def test_row_wise_to_table_wise_to_column_wise_and_back(tmp_path: Path, optimizer: str) -> None:
    tables = three_tables(optimizer)
    url = tmp_path / "0"
    store = save_full(url, tables)
    layouts = [lambda t: row_wise(t, 1), lambda t: column_wise(t, 3), lambda t: row_wise(t, 5)]
    for step, layout in enumerate(layouts, 1):
        into = [table.room(piece) for table in tables for piece in layout(table)]
        assert restore(store, newest_chain(store), into).lossy == ()
        for rows in into:
            next(table for table in tables if table.name == rows.piece.table).assert_equal(rows)
        url = tmp_path / str(step)
        write_save(url, FULL, specs_of(tables), [[Rows(r.piece, r.weights, r.states)] for r in into])  # type: ignore[arg-type]
        store = CheckpointStore(str(url), run="r")


def test_row_wise_adagrad_between_column_pieces_and_whole_rows(tmp_path: Path) -> None:
    table = three_tables()[0]
    wide, narrow = table.piece(0, 1003, 0, 8), table.piece(0, 1003, 8, 12)
    sums = torch.rand(2, 1003)
    write_save(tmp_path, FULL, {"big": table.spec}, [
        [Rows(wide, table.weight[:, :8], {"sum": sums[0]})], [Rows(narrow, table.weight[:, 8:], {"sum": sums[1]})]
    ])  # fmt: skip
    store = CheckpointStore(str(tmp_path), run="r")
    whole = table.room(table.piece(0, 1003))
    report = restore(store, newest_chain(store), [whole])
    assert torch.equal(whole.weights, table.weight)
    torch.testing.assert_close(whole.states["sum"], (8 * sums[0] + 4 * sums[1]) / 12, rtol=1e-6, atol=0)
    assert report.lossy == (
        "big[0:1003, 0:12]: row-wise Adagrad state merged: the mean of the column pieces' sums, "
        "weighted by their columns",
    )
    # Other column pieces: of the first only a part, of the second a part of each.
    left, right = table.room(table.piece(0, 1003, 0, 6)), table.room(table.piece(0, 1003, 6, 12))
    report = restore(store, newest_chain(store), [left, right])
    assert torch.equal(left.states["sum"], sums[0])
    torch.testing.assert_close(right.states["sum"], (2 * sums[0] + 4 * sums[1]) / 6, rtol=1e-6, atol=0)
    assert [text.split(": ")[1].split()[-1] for text in report.lossy] == ["split", "merged", "split"]


def test_splitting_and_merging_equal_state_is_exact(tmp_path: Path) -> None:
    table = three_tables()[0]
    store = save_full(tmp_path / "a", [table])
    parts = [table.room(piece) for piece in column_wise(table, 3)]
    restore(store, newest_chain(store), parts)
    write_save(tmp_path / "b", FULL, {"big": table.spec}, [[Rows(r.piece, r.weights, r.states)] for r in parts])
    whole = table.room(table.piece(0, 1003))
    store = CheckpointStore(str(tmp_path / "b"), run="r")
    restore(store, newest_chain(store), [whole])
    table.assert_equal(whole)


def _base_and_three_deltas(url: Path) -> Table:
    """Row i is i; delta n adds 1000·n to the rows divisible by n + 1 and its state is n."""
    table = three_tables()[0]
    table.weight[:] = torch.arange(1003.0)[:, None]
    table.states["sum"].zero_()
    save_full(url, [table], samples=100)
    parent = FULL
    for number, save_id in enumerate((DELTA_2, DELTA_3, DELTA_4), 1):
        ids = torch.arange(0, 1003, number + 1)
        table.weight[ids] += 1000 * number
        table.states["sum"][ids] = number
        shards = [
            [table.cut(piece, ids[(ids >= piece.row_start) & (ids < piece.row_end)], cut=1 + number)]
            for piece in row_wise(table, 2)
        ]
        write_save(url, save_id, {"big": table.spec}, shards, parent=parent, samples=100 + number)
        parent = save_id
    return table


def test_base_and_three_deltas_in_closed_form(tmp_path: Path) -> None:
    table = _base_and_three_deltas(tmp_path)
    store = CheckpointStore(str(tmp_path), run="r")
    rows = table.room(table.piece(0, 1003))
    report = restore_newest(store, [rows])
    ids = torch.arange(1003)
    added = sum(1000 * number * (ids % (number + 1) == 0) for number in (1, 2, 3))
    assert torch.equal(rows.weights, (ids + added).float()[:, None].expand(-1, 12))
    newest = torch.where(ids % 4 == 0, 3, torch.where(ids % 3 == 0, 2, torch.where(ids % 2 == 0, 1, 0)))
    assert torch.equal(rows.states["sum"], newest.float())
    assert list(report.rows_by_save.values()) == torch.bincount(newest).tolist()
    assert (report.samples, report.save_ids) == (103, (FULL, DELTA_2, DELTA_3, DELTA_4))
    assert "251 rows from 0000-00000004-delta" in str(report)


def test_a_chain_without_its_middle_is_refused(tmp_path: Path) -> None:
    table = _base_and_three_deltas(tmp_path)
    (tmp_path / "saves" / DELTA_3 / "manifest.json").unlink()
    store = CheckpointStore(str(tmp_path), run="r")
    with pytest.raises(SaveIncomplete, match=f"{DELTA_4} continues {DELTA_3}, which is missing"):
        choose(store.list(), save_id=DELTA_4)
    rows = table.room(table.piece(0, 1003))
    report = restore_newest(store, [rows])
    assert report.save_ids == (FULL, DELTA_2)
    assert [skipped.save_id for skipped in report.skipped] == [DELTA_3, DELTA_4]
    assert "never completed" in report.skipped[0].reason


def test_a_missing_shard_file_falls_back_one_save_and_says_so(tmp_path: Path) -> None:
    table = _base_and_three_deltas(tmp_path)
    (tmp_path / "saves" / DELTA_4 / "shard-0001.safetensors").unlink()
    store = CheckpointStore(str(tmp_path), run="r")
    report = restore_newest(store, [table.room(table.piece(0, 10))])  # in whose file nothing is missing
    assert report.save_ids[-1] == DELTA_3
    assert "shard-0001.safetensors is missing" in str(report)
    with pytest.raises(DamagedSave, match="missing"):
        restore(store, newest_chain(store, DELTA_4), [table.room(table.piece(0, 1003))])


def test_a_damaged_byte_falls_back_and_says_where(tmp_path: Path) -> None:
    table = _base_and_three_deltas(tmp_path)
    path = tmp_path / "saves" / DELTA_3 / "shard-0000.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    store = CheckpointStore(str(tmp_path), run="r")
    report = restore_newest(store, [table.room(table.piece(0, 10))])
    assert report.save_ids[-1] == DELTA_2
    assert [skipped.save_id for skipped in report.skipped] == [DELTA_4, DELTA_3]
    assert f"save {DELTA_3}, file shard-0000.safetensors: checksum" in report.skipped[1].reason
    path.write_bytes(b"")
    assert restore_newest(store, [table.room(table.piece(0, 10))]).save_ids[-1] == DELTA_2


def test_without_any_whole_chain_it_is_refused_with_every_reason(tmp_path: Path) -> None:
    table = _base_and_three_deltas(tmp_path)
    for name in (FULL,):
        (tmp_path / "saves" / name / "shard-0000.safetensors").unlink()
    store = CheckpointStore(str(tmp_path), run="r")
    with pytest.raises(SaveNotFound, match=r"none of 4 saves can be used") as error:
        restore_newest(store, [table.room(table.piece(0, 10))])
    assert str(error.value).count("shard-0000.safetensors is missing") == 4


def test_a_missing_slot_is_refused(tmp_path: Path) -> None:
    table = three_tables("exact_adagrad")[0]
    rows = table.cut(table.piece(0, 1003))
    rows.states = {}
    write_save(tmp_path, FULL, {"big": table.spec}, [[rows]])
    store = CheckpointStore(str(tmp_path), run="r")
    with pytest.raises(DamagedSave, match=r"tensor '0000.state.sum' of big\[0:1003, 0:12\] is missing"):
        restore(store, newest_chain(store), [table.room(table.piece(0, 1003))])


def test_rows_in_no_save_are_counted(tmp_path: Path) -> None:
    table = three_tables()[0]
    write_save(
        tmp_path, FULL, {"big": table.spec}, [[table.cut(table.piece(0, 900)), table.cut(table.piece(950, 1003))]]
    )
    store = CheckpointStore(str(tmp_path), run="r")
    with pytest.raises(DamagedSave, match=r"big\[800:1003, 0:12\]: 50 of 203 rows, the first one row 900"):
        restore(store, newest_chain(store), [table.room(table.piece(800, 1003))])


@pytest.mark.parametrize(
    ("ids", "weights"),
    [([3, 2], 2), ([2, 2], 2), ([1, 1003], 2), ([1, 2], 3)],
    ids=["order", "twice", "beyond", "form"],
)
def test_impossible_ids_are_refused_before_anything_is_written(tmp_path: Path, ids: list[int], weights: int) -> None:
    table = three_tables("exact_sgd")[0]
    save_full(tmp_path, [table])
    rows = Rows(table.piece(0, 1003), torch.ones(weights, 12), ids=torch.tensor(ids), cut=2)
    write_save(tmp_path, DELTA_2, {"big": table.spec}, [[rows]], parent=FULL)
    store = CheckpointStore(str(tmp_path), run="r")
    with pytest.raises(DamagedSave, match=r"not ascending within its rows|by the manifest"):
        restore(store, newest_chain(store), [table.room(table.piece(0, 1003))])


def test_the_later_cut_wins_whatever_the_order_of_saves(tmp_path: Path) -> None:
    table = three_tables("exact_sgd")[1]
    save_full(tmp_path, [table], pieces=1)
    piece = table.piece(0, 17)
    for save_id, parent, cut in ((DELTA_2, FULL, 9), (DELTA_3, DELTA_2, 5)):
        ids = torch.arange(cut)
        rows = Rows(piece, torch.full((cut, 8), float(cut)), ids=ids, cut=cut)
        write_save(tmp_path, save_id, {"small": table.spec}, [[rows]], parent=parent)
    # A later timeline beats any cut of the one before.
    rows = Rows(piece, torch.full((2, 8), -1.0), ids=torch.tensor([0, 16]), cut=2)
    (tmp_path / "timelines").mkdir()
    record = TimelineRecord(timeline=1, parent=0, from_save=DELTA_3, opened_unix_s=0.0)
    (tmp_path / "timelines" / "0001.json").write_bytes(record.to_text())
    write_save(tmp_path, "0001-00000004-delta", {"small": table.spec}, [[rows]], parent=DELTA_3)
    found = table.room(piece)
    report = restore_newest(CheckpointStore(str(tmp_path), run="r"), [found])
    assert found.weights[:, 0].tolist() == [-1.0, *[9.0] * 8, *table.weight[9:16, 0].tolist(), -1.0]
    assert list(report.rows_by_save.values()) == [7, 8, 0, 2]


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (Piece("big", 0, 1004, 0, 12), r"outside the saved table of 1003 rows × 12 columns"),
        (Piece("none", 0, 1, 0, 12), r"table 'none' was never saved; the save has big, one, small"),
    ],
)
def test_pieces_that_were_never_saved_are_refused(tmp_path: Path, piece: Piece, message: str) -> None:
    tables = three_tables()
    store = save_full(tmp_path, tables)
    with pytest.raises(CheckpointError, match=message):
        restore(store, newest_chain(store), [tables[0].room(piece)])


def test_state_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    store = save_full(tmp_path, three_tables("exact_sgd"))
    table = three_tables("exact_adagrad")[0]
    with pytest.raises(CheckpointError, match=r"saved under embedding\.optimizer=exact_sgd, whose state is none"):
        restore(store, newest_chain(store), [table.room(table.piece(0, 1003))])


def test_exact_recovery_takes_consistent_saves_only(tmp_path: Path) -> None:
    tables = three_tables("exact_sgd")
    save_full(tmp_path, tables)
    save_full(tmp_path, tables, "0000-00000002-full", consistent=False)
    priority = Rows(tables[0].piece(0, 1003), torch.ones(1, 12), ids=torch.tensor([5]), cut=2)
    specs = specs_of(tables)
    write_save(tmp_path, "0000-00000003-priority", specs, [[priority]], parent="0000-00000002-full")  # type: ignore[arg-type]
    store = CheckpointStore(str(tmp_path), run="r")
    into = [tables[0].room(tables[0].piece(0, 1003))]
    report = restore_newest(store, into, exact=True)
    assert (report.save_ids, report.exact) == ((FULL,), True)
    assert "a priority save leaves changed rows out" in report.skipped[0].reason
    assert "cut at different instants" in report.skipped[1].reason
    report = restore_newest(store, into)
    assert (report.save_ids[-1], report.exact, report.rows_by_save["0000-00000003-priority"]) == (
        "0000-00000003-priority",
        False,
        1,
    )


def test_state_that_is_not_rows_comes_back(tmp_path: Path) -> None:
    states = {
        "dense/trainer-0": {
            "model.w": torch.randn(3, 4),
            "optimizer.sum.w": torch.rand(3, 4),
            "scalar": torch.tensor(2.5),
        },
        "rng": {"torch": torch.get_rng_state(), "none": torch.empty(0, dtype=torch.int64)},
    }
    position = {"epoch": 1, "splits": [[0, 100], [300, 400]]}
    store = save_full(tmp_path, three_tables(), states=states, extra={"data_position": position})
    manifest = store.list()[-1]
    for name, expected in states.items():
        found = read_state(store, manifest, name)
        assert found.keys() == expected.keys()
        assert all(
            torch.equal(found[key], expected[key]) and found[key].dtype == expected[key].dtype for key in expected
        )
    assert manifest.extra["data_position"] == position
    with pytest.raises(SaveNotFound, match=r"no state 'dense'; it has 'dense/trainer-0', 'rng'"):
        read_state(store, manifest, "dense")
