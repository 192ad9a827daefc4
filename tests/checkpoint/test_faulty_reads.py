"""Storage that fails while a save is read or synced: tried again, passed over, or refused, and never believed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from checkpoint.catalog import SaveCatalog
from checkpoint.errors import StorageError
from checkpoint.piece_rows import PieceRows
from checkpoint.retention import RetentionPolicy
from checkpoint.store import CheckpointStore
from checkpoint.verify import verify
from tests.checkpoint.save_parts import TABLES, save_all, small_writer, whole


def two_saves(folder: Path) -> tuple[CheckpointStore, list[str], list[PieceRows]]:
    """Two full saves; the store, their ids, and the rows of the second."""
    store, writer = CheckpointStore(str(folder), run="r"), small_writer()
    saves = [save_all(store, whole(TABLES, seed), writer, consistent=True).save_id for seed in (1, 2)]
    writer.close()
    return store, saves, whole(TABLES, 2)


def test_a_damaged_manifest_is_a_fault_and_an_absent_one_is_not(tmp_path: Path) -> None:
    store, saves, _ = two_saves(tmp_path)
    manifest = tmp_path / "saves" / saves[1] / "manifest.json"
    text = manifest.read_bytes()
    manifest.write_bytes(text.replace(b'"samples": ', b'"samples":  ', 1).replace(b"full", b"fuxl", 1))
    report = verify(SaveCatalog(str(tmp_path), run=store.run))
    assert not report.ok and list(report.damaged) == [saves[1]] and report.newest == saves[0]
    manifest.unlink()
    report = verify(SaveCatalog(str(tmp_path), run=store.run))
    assert report.ok and report.incomplete == (saves[1],)


def test_a_failed_fsync_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, plain = [0], os.fsync

    def fsync(descriptor: int) -> None:
        if "shard-" in os.readlink(f"/proc/self/fd/{descriptor}"):
            calls[0] += 1
            if calls[0] == 1:
                raise OSError(errno.EIO, "Input/output error")
        plain(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError, match="could not fsync"):
        two_saves(tmp_path)
    assert calls == [1]


def test_a_consistent_priority_save_is_not_what_everybody_can_go_back_to(tmp_path: Path) -> None:
    store, saves, _ = two_saves(tmp_path)
    first, second = (store.read_manifest(save) for save in saves)
    full = first.model_copy(update={"consistent": True})
    chunked = second.model_copy(update={"consistent": False})
    priority = second.model_copy(
        update={"save_id": "0000-00000003-priority", "sequence": 3, "kind": "priority", "parent": second.save_id}
    ).model_copy(update={"consistent": True})
    assert RetentionPolicy(keep_last=1).kept([full, chunked, priority]) == {
        one.save_id for one in (full, chunked, priority)
    }
