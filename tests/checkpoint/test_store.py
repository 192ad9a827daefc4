"""Beginning, committing and sweeping: what contradicts what is there is refused, and what is there survives."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import JsonValue

from checkpoint.catalog import SaveCatalog
from checkpoint.errors import SaveIncomplete, SaveRefused, StorageError
from checkpoint.listing import listing
from checkpoint.manifest import FileEntry, Manifest, TableSpec
from checkpoint.piece_rows import PieceRows
from checkpoint.retention import RetentionPolicy
from checkpoint.shard_save import ShardSave
from checkpoint.state_file import write_state
from checkpoint.store import CheckpointStore
from checkpoint.ticket import SaveTicket
from checkpoint.verify import verify
from tests.checkpoint.save_parts import FAST, TABLES, cut_rows, save_all, small_writer, whole

WRITER = small_writer()
USER = {"user": TABLES["user"]}


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path), run="r", retry=FAST)


def full(store: CheckpointStore, seed: int = 0) -> Manifest:
    return save_all(store, whole(TABLES, seed), WRITER, consistent=True)


def begun(store: CheckpointStore, parent: str | None, **changes: object) -> SaveTicket:
    kind = "full" if parent is None else "delta"
    options = {"timeline": 0, "samples": 0, "consistent": True, "tables": TABLES, "parent": parent, **changes}
    return store.begin(kind, **options)  # type: ignore[arg-type]


def written(ticket: SaveTicket, shard_id: int = 0, pieces: list[PieceRows] | None = None) -> list[FileEntry]:
    chosen = {} if ticket.kind == "full" else {index: torch.arange(3) for index in range(3)}
    rows = whole(TABLES, 1) if pieces is None else pieces
    return ShardSave(
        ticket, shard_id, rows, chosen if pieces is None else {}, "fp32", WRITER, chunk_bytes=8192
    ).finish()


# -- what is complete


def test_a_full_save_that_has_some_rows_twice_and_others_never_is_refused(store: CheckpointStore) -> None:
    (table,) = whole(USER, 0)
    for first, second, fault in (
        ((0, 2500), (0, 2500), r"rows \[0, \d+\) of columns \[0, 16\) were written twice"),
        ((0, 2500), (2501, 5000), r"rows \[2,500, 2,501\) of columns \[0, 16\) are missing"),
        ((0, 2500, 0, 8), (0, 2500, 8, 16), r"rows \[2,500, 5,000\) of columns \[0, 8\) are missing"),
        ((0, 5000, 0, 8), (0, 5000, 7, 15), r"rows \[0, \d+\) of columns \[7, 8\) were written twice"),
    ):
        ticket = begun(store, None, tables=USER)
        files = [
            file for shard, at in enumerate((first, second)) for file in written(ticket, shard, [cut_rows(table, *at)])
        ]
        with pytest.raises(SaveIncomplete, match=rf"table 'user' of 5,000 rows × 16 columns: {fault}"):
            store.commit(ticket, files)
        store.abort(ticket)
    ticket = begun(store, None, tables=USER)
    parts = [(0, 2500), (2500, 5000, 0, 7), (2500, 4000, 7, 16), (4000, 5000, 7, 16)]
    store.commit(
        ticket, [file for shard, part in enumerate(parts) for file in written(ticket, shard, [cut_rows(table, *part)])]
    )


def test_a_delta_without_the_part_of_a_shard_is_refused(store: CheckpointStore) -> None:
    parent = full(store)
    ticket = begun(store, parent.save_id, shards=[0, 2])
    files = written(ticket)
    with pytest.raises(SaveIncomplete, match=r"delta save 0000-00000002-delta: nothing was written by shards \[2\]"):
        store.commit(ticket, files)
    nothing = {index: torch.empty(0, dtype=torch.int64) for index in range(3)}
    files += ShardSave(ticket, 2, whole(TABLES, 1), nothing, "fp32", WRITER).finish()  # says that nothing changed
    assert [file.shard_id for file in files] == [0, 2]
    store.commit(ticket, files)
    assert verify(store).ok


def test_a_file_of_another_save_is_refused(store: CheckpointStore, tmp_path: Path) -> None:
    stolen = full(store).files[0]
    ticket = begun(store, None)
    path = f"../{store.list()[0].save_id}/{stolen.path}"
    with pytest.raises(SaveRefused, match="is no name of a file in its directory"):
        store.commit(ticket, [stolen.model_copy(update={"path": path})])


# -- what is continued


def test_a_save_that_nobody_could_restore_is_not_begun(store: CheckpointStore, tmp_path: Path) -> None:
    first, second = full(store), full(store)
    with pytest.raises(SaveRefused, match=r"cannot continue x: no complete save 'x'.*Take a full save"):
        begun(store, "x")
    other = {**TABLES, "tiny": TableSpec(rows=4, dim=8, dtype="fp32", optimizer="exact_sgd")}
    with pytest.raises(SaveRefused, match="its tables are other ones"):
        begun(store, second.save_id, tables=other)
    with pytest.raises(SaveRefused, match="timeline 1 of run 'r' is not the newest, 0"):
        begun(store, None, timeline=1)
    timeline = store.open_timeline(first.save_id)
    with pytest.raises(SaveRefused, match="cannot continue 0000-00000002-full: no complete save"):  # hidden
        begun(store, second.save_id, timeline=timeline)
    with pytest.raises(SaveRefused, match="timeline 0 of run 'r' is not the newest, 1"):
        begun(store, first.save_id)
    (tmp_path / "saves" / first.save_id / "manifest.json").unlink()
    with pytest.raises(SaveRefused, match=f"{first.save_id} was deleted"):
        begun(store, first.save_id, timeline=timeline)
    shutil.rmtree(tmp_path / "saves" / first.save_id)
    with pytest.raises(SaveRefused, match="no complete save"):
        begun(store, first.save_id, timeline=timeline)


def test_names_that_a_manifest_cannot_hold_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    name = "f\udce9"  # what Python makes of a file name in Latin-1
    with pytest.raises(SaveRefused, match=r"names of run and tables must be Unicode text, and .*f\\udce9.* rename it"):
        begun(CheckpointStore(str(tmp_path), run="r"), None, tables={name: TABLES["tiny"]})
    with pytest.raises(SaveRefused, match="names of run and tables"):
        begun(CheckpointStore(str(tmp_path), run=name), None)
    assert not (tmp_path / "saves").exists()


@pytest.mark.parametrize("extra", [{"f\udce9": 1}, {"files": ["f\udce9"]}])
def test_other_text_that_a_manifest_cannot_hold_fails_the_save_and_no_other(
    store: CheckpointStore, extra: dict[str, JsonValue]
) -> None:
    first = full(store)
    ticket = begun(store, first.save_id)
    files = written(ticket)
    with pytest.raises(SaveRefused, match=f"save {ticket.save_id}: extra must be Unicode text"):
        store.commit(ticket, files, extra)
    store.abort(ticket)
    assert [save.save_id for save in store.list()] == [first.save_id]
    full(store, 1)


def test_a_save_is_not_committed_when_what_it_continues_has_gone(store: CheckpointStore, tmp_path: Path) -> None:
    parent = full(store)
    ticket = begun(store, parent.save_id)
    files = written(ticket)
    CheckpointStore(str(tmp_path), run="r").open_timeline(None)
    with pytest.raises(SaveRefused, match="timeline 0 of run 'r' is not the newest, 1"):
        store.commit(ticket, files)


def test_retention_keeps_what_the_save_under_way_continues(store: CheckpointStore) -> None:
    first, second = full(store), full(store)
    ticket = begun(store, first.save_id)
    assert store.retain(RetentionPolicy(keep_last=1)) == []
    store.commit(ticket, written(ticket))
    assert [save.save_id for save in store.list()] == [first.save_id, second.save_id, ticket.save_id]


# -- somebody else


def test_two_stores_never_begin_the_same_save(store: CheckpointStore, tmp_path: Path) -> None:
    parent = full(store).save_id
    gate = threading.Barrier(8)
    sequences: list[int] = []

    def begin(parent: str | None) -> None:
        own = CheckpointStore(str(tmp_path), run="r", retry=FAST)
        gate.wait()
        with contextlib.suppress(SaveRefused):  # gave way too often
            sequences.append(begun(own, parent).sequence)

    threads = [threading.Thread(target=begin, args=(parent if index % 2 else None,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sequences) == len(set(sequences)) > 0


@pytest.mark.parametrize("after", ["begin", "copy"])
def test_a_shard_whose_save_was_swept_by_a_new_store_is_told(
    store: CheckpointStore, tmp_path: Path, after: str
) -> None:
    ticket = begun(store, None)
    save = ShardSave(ticket, 0, whole(TABLES, 0), {}, "fp32", WRITER)
    if after == "copy":
        while not save.step(1 << 20):
            pass
    other = CheckpointStore(str(tmp_path), run="r", retry=FAST)
    begun(other, None)  # or the directory would stay, with its ticket
    if after == "copy":
        while not (save.settled or os.path.exists(f"{ticket.url}/shard-0000.safetensors")):
            pass
    assert other.sweep() == [ticket.save_id]
    if after == "begin":
        with pytest.raises(StorageError, match="is gone: the save was given up by somebody else"):
            save.finish()
    with pytest.raises(StorageError, match="is gone"):
        write_state(ticket, "dense", {"w": torch.ones(1)}, retry=FAST)
    with pytest.raises((StorageError, SaveIncomplete)):
        store.commit(ticket, [])


# -- fsync


def failing(monkeypatch: pytest.MonkeyPatch, fails: Callable[[int, int], bool]) -> list[int]:
    """Make the ``fails(n-th call, descriptor)`` fsync fail with EIO."""
    calls: list[int] = []
    fsync = os.fsync

    def call(descriptor: int) -> None:
        calls.append(descriptor)
        if fails(len(calls), descriptor):
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", call)
    return calls


def test_a_failed_fsync_fails_the_file_and_is_not_tried_again(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = begun(store, None)
    save = ShardSave(ticket, 0, whole(TABLES, 0), {}, "fp32", WRITER)
    calls = failing(monkeypatch, lambda number, _: number == 1)
    with pytest.raises(StorageError, match=r"fsync \(not tried again"):
        save.finish()
    assert len(calls) == 1


def test_a_save_whose_manifest_is_there_is_committed_whatever_failed_after_that(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ticket = begun(store, None)
    files = written(ticket)
    manifest = tmp_path / "saves" / ticket.save_id / "manifest.json"
    failing(monkeypatch, lambda _, __: manifest.exists())
    store.commit(ticket, files)
    monkeypatch.undo()
    assert [save.save_id for save in SaveCatalog(str(tmp_path), run="r").list()] == [ticket.save_id]
    ticket = begun(store, None)
    files = written(ticket)
    failing(monkeypatch, lambda _, descriptor: "manifest.json.tmp" in os.readlink(f"/proc/self/fd/{descriptor}"))
    with pytest.raises(StorageError, match="fsync"):
        store.commit(ticket, files)
    monkeypatch.undo()
    assert len(SaveCatalog(str(tmp_path), run="r").list()) == 1
    store.commit(ticket, files)
    assert len(SaveCatalog(str(tmp_path), run="r").list()) == 2


# -- what does not belong there


def test_strangers_among_the_saves_are_said_and_break_nothing(store: CheckpointStore, tmp_path: Path) -> None:
    first = full(store)
    saves = tmp_path / "saves"
    (saves / "README").write_text("hello")
    (saves / "0000-00000009-full").write_text("a file named like a save")
    (saves / "0000-00000005-full" / "manifest.json").mkdir(parents=True)
    found = listing(SaveCatalog(str(tmp_path), run="r"))
    assert [save.save_id for save in found.saves] == [first.save_id]
    assert list(found.incomplete) == ["0000-00000009-full"]
    assert "is a directory, and should be a file" in found.damaged["0000-00000005-full"]
    (saves / "0000-00000003-full" / "folder").mkdir(parents=True)
    (saves / "0000-00000004-full").mkdir()
    with pytest.raises(StorageError, match="folder"):
        store.sweep()
    assert not (saves / "0000-00000004-full").exists()
    assert full(store).sequence == 10
    assert not verify(store).ok
