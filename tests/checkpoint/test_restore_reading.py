"""What a restore reads, decodes and needs: encodings, byte ranges, object stores, memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from checkpoint.encodings import decode, encode
from checkpoint.errors import CheckpointError
from checkpoint.manifest import Encoding
from checkpoint.piece_rows import PieceRows
from checkpoint.restore import restore, restore_newest
from checkpoint.shard_save import ShardSave
from checkpoint.store import CheckpointStore
from tests.checkpoint.save_parts import small_writer
from tests.checkpoint.saves import Rows, Table, write_save
from tests.checkpoint.small_run import DELTA_2, DELTA_3, FULL, newest_chain, save_full, three_tables


def test_only_what_is_wanted_is_read(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    table = Table.random("t", 200_000, 16, "exact_adagrad", generator)
    store = save_full(tmp_path, [table])
    row_bytes = 2 * 16 * 4
    rows = table.room(table.piece(60_000, 70_000))
    report = restore(store, newest_chain(store), [rows], check=False)
    table.assert_equal(rows)
    assert report.bytes_read == 10_000 * row_bytes
    report = restore(store, newest_chain(store), [rows])
    assert report.bytes_read == (tmp_path / "saves" / FULL / "shard-0001.safetensors").stat().st_size


@pytest.mark.parametrize("encoding", ["fp16", "int8", "int4"])
@pytest.mark.parametrize("sparse", [False, True])
def test_encoded_rows_are_decoded_into_pieces_of_other_columns(
    tmp_path: Path, encoding: Encoding, sparse: bool
) -> None:
    table = three_tables("exact_adagrad")[0]
    save_full(tmp_path, [table])
    ids = torch.arange(0, 1003, 3) if sparse else None
    rows = table.cut(table.piece(0, 1003), ids, cut=2)
    encoded = encode(rows.weight, encoding)
    table.weight[slice(None) if ids is None else ids] = decode(encoded, encoding, 12)
    rows = Rows(rows.piece, encoded, rows.states, ids, 2, encoding)
    write_save(tmp_path, DELTA_2, {"big": table.spec}, [[rows]], parent=FULL)
    store = CheckpointStore(str(tmp_path), run="r")
    into = [table.room(table.piece(0, 500, 0, 5)), table.room(table.piece(400, 1003, 3, 12))]
    restore_newest(store, into)
    for piece in into:
        table.assert_equal(piece)


def test_fp16_rows_take_fp32_saves(tmp_path: Path) -> None:
    table = three_tables("exact_sgd")[0]
    store = save_full(tmp_path, [table])
    half = PieceRows(table.piece(0, 1003), torch.empty(1003, 12, dtype=torch.float16))
    restore(store, newest_chain(store), [half])
    assert torch.equal(half.weights, table.weight.half())


@pytest.mark.parametrize("columns", [12, 5], ids=["whole rows", "some columns"])
def test_values_beyond_fp16_are_refused_with_their_number(tmp_path: Path, columns: int) -> None:
    table = three_tables("exact_sgd")[0]
    table.weight[7, 2] = -7e4
    table.weight[400, 4] = 1e9
    table.weight[401, 0] = 65519.0  # is rounded down to the largest one
    table.weight[402, 0] = torch.inf  # was so when it was saved
    store = save_full(tmp_path, [table])
    half = PieceRows(table.piece(5, 1003, 0, columns), torch.empty(998, columns, dtype=torch.float16))
    message = r"2 of 998 rows hold values up to 1e\+09, and float16 holds up to ±65504; restore them into float32"
    with pytest.raises(CheckpointError, match=message):
        restore(store, newest_chain(store), [half])
    # Only the newest version of a row counts, whether or not it comes with other rows that are older.
    table.weight[7, 2] = 3.0
    changed = table.cut(table.piece(0, 1003), torch.tensor([3, 7]), cut=2)
    write_save(tmp_path, DELTA_2, {"big": table.spec}, [[changed]], parent=FULL)
    with pytest.raises(CheckpointError, match="1 of 998 rows"):
        restore(store, newest_chain(store), [half])
    table.weight[400, 4] = 4.0
    changed = table.cut(table.piece(400, 401), cut=3)
    write_save(tmp_path, DELTA_3, {"big": table.spec}, [[changed]], parent=DELTA_2)
    restore(store, newest_chain(store), [half])
    assert torch.equal(half.weights, table.weight[5:, :columns].half())


def test_object_stores_are_read_by_ranges() -> None:
    table = three_tables("exact_adagrad")[0]
    store = CheckpointStore("memory://restore-test", run="r")
    ticket = store.begin("full", timeline=0, samples=5, consistent=True, tables={"big": table.spec}, parent=None)
    live = PieceRows(table.piece(0, 1003), table.weight, table.states)
    store.commit(ticket, ShardSave(ticket, 0, [live], {}, "fp32", small_writer()).finish())
    rows = table.room(table.piece(990, 1003))
    assert restore(store, newest_chain(store), [rows], check=False).bytes_read == 13 * 2 * 12 * 4
    table.assert_equal(rows)


def test_memory_beside_the_target_is_bounded(tmp_path: Path) -> None:
    """64 MB of rows, and a delta of most of them in int8, cost no more than buffers, versions and row ids."""
    rows = 250_000
    table = Table.random("t", rows, 64, "exact_row_wise_adagrad", torch.Generator().manual_seed(0))
    save_full(tmp_path, [table], pieces=2)
    ids = torch.arange(rows // 10, rows)
    cut = table.cut(table.piece(0, rows), ids, cut=2)
    encoded = Rows(cut.piece, encode(cut.weight, "int8"), cut.states, ids, 2, "int8")
    write_save(tmp_path, DELTA_2, {"t": table.spec}, [[encoded]], parent=FULL)
    store = CheckpointStore(str(tmp_path), run="r")
    target = table.room(table.piece(0, rows))
    restore(store, newest_chain(store), [target])  # libraries loaded, memory of the target touched
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = _status_bytes("VmRSS")
    restore(store, newest_chain(store), [target])
    assert _status_bytes("VmHWM") - before < (8 + 16 + 8) * 2**20 + 4 * rows + 3 * 8 * rows


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])
