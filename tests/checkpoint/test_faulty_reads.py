"""Storage that fails while a save is read or synced: tried again, passed over, or refused, and never believed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import pytest
import torch

from checkpoint.catalog import SaveCatalog
from checkpoint.errors import StorageError
from checkpoint.manifest import FileEntry
from checkpoint.piece_rows import PieceRows
from checkpoint.restore import restore_newest
from checkpoint.retention import RetentionPolicy
from checkpoint.store import CheckpointStore
from checkpoint.verify import verify
from tests.checkpoint.save_parts import TABLES, save_all, small_writer, whole


class Flaky:
    """A file whose reads fail ``times`` times with EIO, half way into what was asked for."""

    def __init__(self, file: BinaryIO, times: list[int]) -> None:
        self._file, self._times = file, times

    def readinto(self, view: memoryview) -> int:
        if self._times[0] > 0:
            self._times[0] -= 1
            self._file.readinto(view[: len(view) // 2])  # type: ignore[attr-defined]
            raise OSError(errno.EIO, "Input/output error")
        return int(self._file.readinto(view))  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def __enter__(self) -> Flaky:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def two_saves(folder: Path) -> tuple[CheckpointStore, list[str], list[PieceRows]]:
    """Two full saves; the store, their ids, and the rows of the second."""
    store, writer = CheckpointStore(str(folder), run="r"), small_writer()
    saves = [save_all(store, whole(TABLES, seed), writer, consistent=True).save_id for seed in (1, 2)]
    writer.close()
    return store, saves, whole(TABLES, 2)


def empty_like(rows: Sequence[PieceRows]) -> list[PieceRows]:
    """Places for them."""
    return [
        PieceRows(one.piece, torch.zeros_like(one.weights), {k: torch.zeros_like(s) for k, s in one.states.items()})
        for one in rows
    ]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], list[int]]:
    """Reads of a save's files fail so many times."""

    def fail(save_id: str, times: int) -> list[int]:
        left, plain = [times], SaveCatalog.open_file

        def open_file(self: SaveCatalog, name: str, entry: FileEntry) -> object:
            file = plain(self, name, entry)
            return Flaky(file, left) if name == save_id else file

        monkeypatch.setattr(SaveCatalog, "open_file", open_file)
        return left

    return fail


def test_a_read_that_fails_twice_is_tried_again(tmp_path: Path, failing: Callable[[str, int], list[int]]) -> None:
    store, saves, rows = two_saves(tmp_path)
    left = failing(saves[1], 2)
    into = empty_like(rows)
    report = restore_newest(store, into)
    assert (report.save_ids[-1], left) == (saves[1], [0])
    for got, wanted in zip(into, rows, strict=True):
        assert torch.equal(got.weights, wanted.weights)


def test_a_save_that_cannot_be_read_is_passed_over(tmp_path: Path, failing: Callable[[str, int], list[int]]) -> None:
    store, saves, rows = two_saves(tmp_path)
    failing(saves[1], 10**6)
    report = restore_newest(store, empty_like(rows))
    assert report.save_ids[-1] == saves[0]
    assert [skipped.save_id for skipped in report.skipped] == [saves[1]] and "Input/output error" in str(report)
    checked = verify(store)
    assert not checked.ok and checked.newest == saves[0]


def test_a_damaged_manifest_is_a_fault_and_an_absent_one_is_not(tmp_path: Path) -> None:
    store, saves, _ = two_saves(tmp_path)
    manifest = tmp_path / "saves" / saves[1] / "manifest.json"
    text = manifest.read_bytes()
    manifest.write_bytes(text.replace(b'"samples": ', b'"samples":  ', 1).replace(b"full", b"fuxl", 1))
    report = verify(SaveCatalog(str(tmp_path), run=store.run))
    assert not report.ok and list(report.damaged_manifests) == [saves[1]] and report.newest == saves[0]
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
