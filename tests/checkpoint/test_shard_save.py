from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import xxhash

from checkpoint.manifest import TableSpec
from checkpoint.piece_rows import PieceRows
from checkpoint.shard_save import ShardSave
from checkpoint.store import CheckpointStore
from checkpoint.writer import ShardWriter
from tests.checkpoint.save_parts import (
    FAST,
    TABLES,
    assert_equal,
    copy_of,
    cut_rows,
    read_back,
    save_all,
    small_writer,
    whole,
)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path), run="r", retry=FAST)


@pytest.fixture
def writer() -> ShardWriter:
    return small_writer()


@pytest.mark.parametrize("consistent", [False, True])
def test_full_save_reads_back_with_the_safetensors_library(
    store: CheckpointStore, writer: ShardWriter, tmp_path: Path, consistent: bool
) -> None:
    pieces = whole(TABLES, 0)
    manifest = save_all(store, pieces, writer, consistent=consistent)
    found = whole(TABLES, 1)
    read_back(tmp_path, manifest, found)
    assert_equal(found, pieces)
    cuts = [segment.cut for segment in manifest.files[0].segments]
    first = 1 << 24
    assert set(cuts) == {first} if consistent else cuts == list(range(first, first + len(cuts)))


def test_checksum_and_bytes_are_those_of_the_file(store: CheckpointStore, writer: ShardWriter, tmp_path: Path) -> None:
    manifest = save_all(store, whole(TABLES, 0), writer)
    (file,) = manifest.files
    data = (tmp_path / "saves" / manifest.save_id / file.path).read_bytes()
    assert len(data) == file.bytes
    assert file.checksum == f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}"


def test_priority_save_has_the_selected_rows_and_small_tables_whole(
    store: CheckpointStore, writer: ShardWriter, tmp_path: Path
) -> None:
    before = whole(TABLES, 0)
    parent = save_all(store, before, writer)
    after = whole(TABLES, 1)
    ids = torch.randperm(5000)[:700].sort().values
    manifest = save_all(
        store,
        after,
        writer,
        kind="priority",
        parent=parent.save_id,
        selections={0: ids, 1: torch.empty(0, dtype=torch.int64)},
    )
    found = copy_of(before)
    read_back(tmp_path, manifest, found)
    expected = copy_of(before)
    expected[0].weights[ids], expected[0].states["sum"][ids] = after[0].weights[ids], after[0].states["sum"][ids]
    expected[2].weights.copy_(after[2].weights)
    assert_equal(found, expected)
    for segment in manifest.files[0].segments:
        assert segment.sparse == (segment.table == "user")


def test_rows_and_columns_of_pieces_are_written_with_global_ids(
    store: CheckpointStore, writer: ShardWriter, tmp_path: Path
) -> None:
    tables = {"item": TABLES["item"]}
    (table,) = whole(tables, 0)
    shards = [
        [cut_rows(table, 0, 100)],
        [cut_rows(table, 100, 301, 0, 2), cut_rows(table, 100, 301, 2, 5)],
    ]
    ticket = store.begin("full", timeline=0, samples=0, consistent=False, tables=tables, parent=None)
    files = []
    for shard_id, pieces in enumerate(shards):
        files += ShardSave(ticket, shard_id, pieces, {}, "fp32", writer, chunk_bytes=999).finish()
    manifest = store.commit(ticket, files)
    found = whole(tables, 1)
    read_back(tmp_path, manifest, found)
    assert_equal(found, [table])


def test_steps_take_what_is_live_then_and_never_wait(store: CheckpointStore, tmp_path: Path) -> None:
    writer = small_writer(count=2)
    tables = {"user": TABLES["user"]}
    pieces = whole(tables, 0)
    ticket = store.begin("full", timeline=0, samples=0, consistent=False, tables=tables, parent=None)
    save = ShardSave(ticket, 0, pieces, {}, "fp32", writer, chunk_bytes=8192)
    held = [writer.pool.take() for _ in range(2)]
    assert not save.step(1 << 20)  # no buffer is free
    for buffer in held:
        assert buffer is not None
        writer.pool.give(buffer)
    assert not save.step(1)
    pieces[0].weights.add_(1)
    manifest = store.commit(ticket, save.finish())
    found = whole(tables, 1)
    read_back(tmp_path, manifest, found)
    first = manifest.files[0].segments[0].rows
    expected = copy_of(pieces)
    expected[0].weights[:first] = whole(tables, 0)[0].weights[:first]
    assert_equal(found, expected)


@pytest.mark.parametrize("dim", [16, 5000])
def test_steps_get_on_with_chunks_or_rows_larger_than_all_buffers(
    store: CheckpointStore, tmp_path: Path, dim: int
) -> None:
    tables = {"wide": TableSpec(rows=50, dim=dim, dtype="fp32", optimizer="exact_sgd")}
    pieces = whole(tables, 0)
    ticket = store.begin("full", timeline=0, samples=0, consistent=False, tables=tables, parent=None)
    save = ShardSave(ticket, 0, pieces, {}, "fp32", small_writer(2, 4096), chunk_bytes=20_000)
    deadline = time.monotonic() + 60
    while not save.step(1):
        assert time.monotonic() < deadline, "no buffer was ever enough"
    found = whole(tables, 1)
    read_back(tmp_path, store.commit(ticket, save.finish(60)), found)
    assert_equal(found, pieces)


@pytest.mark.parametrize("encoding", ["fp16", "int8", "int4"])
def test_encodings_lose_what_they_say_and_state_nothing(
    store: CheckpointStore, writer: ShardWriter, tmp_path: Path, encoding: str
) -> None:
    pieces = whole(TABLES, 0)
    ids = torch.arange(1, 5000, 3)
    full = save_all(store, pieces, writer, encoding=encoding)
    sparse = save_all(
        store, pieces, writer, kind="priority", parent=full.save_id, encoding=encoding, selections={0: ids}
    )
    found = whole(TABLES, 1)
    read_back(tmp_path, full, found)
    again = copy_of(found)
    read_back(tmp_path, sparse, again)
    assert_equal(again, found)
    for one, live in zip(found, pieces, strict=True):
        spread = (live.weights.amax(1) - live.weights.amin(1))[:, None]
        step = {"fp16": 2**-11 * live.weights.abs(), "int8": spread / 255, "int4": spread / 15 + 0.003}[encoding]
        assert bool(
            (
                (one.weights - live.weights).abs() <= 0.51 * step + 1e-6
                if encoding != "fp16"
                else (one.weights - live.weights).abs() <= step + 1e-6
            ).all()
        )
        for name, state in live.states.items():
            assert torch.equal(one.states[name], state)


def test_fp16_rows_stay_fp16(store: CheckpointStore, writer: ShardWriter, tmp_path: Path) -> None:
    tables = {"user": TABLES["user"].model_copy(update={"dtype": "fp16"})}
    pieces = whole(tables, 0)
    manifest = save_all(store, pieces, writer, tables=tables)
    assert {segment.encoding for segment in manifest.files[0].segments} == {"fp16"}
    found = whole(tables, 1)
    read_back(tmp_path, manifest, found)
    assert_equal(found, pieces)


def test_what_was_done_on_copying_is_undone_last_first(store: CheckpointStore, writer: ShardWriter) -> None:
    tables = {"user": TABLES["user"]}
    pieces = whole(tables, 0)
    counters = torch.arange(5000)
    original = counters.clone()
    order: list[int] = []

    def copied(index: int, rows: torch.Tensor | slice) -> object:
        assert isinstance(rows, slice)  # of whole pieces: nobody has to make ids of them
        kept = counters[rows].clone()
        counters[rows] = 0

        def undo() -> None:
            order.append(rows.start)
            counters[rows] = kept

        return undo

    ticket = store.begin("full", timeline=0, samples=0, consistent=False, tables=tables, parent=None)
    save = ShardSave(ticket, 0, pieces, {}, "fp32", writer, chunk_bytes=8192, on_copied=copied)
    save.finish()
    assert not counters.any()
    save.fail()
    save.fail()
    store.abort(ticket)
    assert torch.equal(counters, original)
    assert order == sorted(order, reverse=True)
    assert len(order) > 10


def test_a_shard_that_owns_nothing_writes_nothing(store: CheckpointStore, writer: ShardWriter) -> None:
    ticket = store.begin("full", timeline=0, samples=0, consistent=False, tables=TABLES, parent=None)
    assert ShardSave(ticket, 7, [], {}, "fp32", writer).finish() == []


def test_selections_that_would_corrupt_are_refused(store: CheckpointStore, writer: ShardWriter) -> None:
    ticket = store.begin("full", timeline=0, samples=0, consistent=False, tables=TABLES, parent=None)
    pieces = whole(TABLES, 0)
    for ids in ([5, 4], [1, 1], [-1, 0], [0, 5000]):
        with pytest.raises(ValueError, match="ascending, unique and in"):
            ShardSave(ticket, 0, pieces, {0: torch.tensor(ids)}, "fp32", writer)
    with pytest.raises(ValueError, match="3 pieces"):
        ShardSave(ticket, 0, pieces, {3: None}, "fp32", writer)
    with pytest.raises(ValueError, match="under exact_sgd"):
        wrong = PieceRows(pieces[2].piece, pieces[2].weights, {"sum": torch.zeros(3)})
        ShardSave(ticket, 0, [wrong], {}, "fp32", writer)
