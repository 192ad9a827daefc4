"""Storage that fails while it is read: tried again, then done without; rows and other state fall back together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from checkpoint.catalog import SaveCatalog
from checkpoint.errors import CheckpointError, SaveNotFound, StorageError
from checkpoint.piece_rows import PieceRows
from checkpoint.restore import restore_newest
from checkpoint.undamaged import choose_undamaged
from checkpoint.verify import verify
from tests.checkpoint.save_parts import FAST
from tests.checkpoint.saves import Table, write_save
from tests.checkpoint.small_run import DELTA_2, FULL, save_full, specs_of, three_tables


class FaultyFile:
    """A file whose reads fail so many times (for ever: -1)."""

    def __init__(self, file: Any, failures: int) -> None:
        self._file, self._failures = file, failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def readinto(self, view: memoryview) -> Any:
        if self._failures:
            self._failures -= 1
            self._file.seek(3)  # where it is after a failure is anybody's guess
            raise OSError(5, "Input/output error")
        return self._file.readinto(view)


class FaultyFileSystem(MemoryFileSystem):  # type: ignore[misc]
    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    faults: ClassVar[dict[str, int]] = {}
    closed: ClassVar[list[str]] = []

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return MemoryFileSystem._strip_protocol(str(path).replace("faulty://", "memory://"))

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode == "rb" and any(part in path for part in self.closed):
            raise OSError(5, "Input/output error")
        file = super().open(path, mode, **kwargs)
        failures = next((count for part, count in self.faults.items() if part in path), 0)
        return FaultyFile(file, failures) if mode == "rb" and failures else file


@pytest.fixture
def faults() -> Iterator[dict[str, int]]:
    fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
    FaultyFileSystem.store.clear()
    yield FaultyFileSystem.faults
    FaultyFileSystem.faults.clear()
    FaultyFileSystem.closed.clear()


def two_saves(url: Path, states: bool = True) -> tuple[list[Table], Table]:
    """A full save, and a delta of three rows of the first table; the tables as of the first, and it as of both."""
    tables = three_tables("exact_sgd")
    save_full(url, tables, states={"dense": {"w": torch.ones(2)}, "rng": {"r": torch.ones(1)}}, samples=1)
    first = tables[0]
    after = Table(first.name, first.spec, first.weight.clone(), {})
    ids = torch.tensor([1, 5, 900])
    after.weight[ids] = 0
    rows = after.cut(after.piece(0, 1003), ids, cut=2 << 24)
    dense = {"dense": {"w": torch.zeros(2)}} if states else None
    write_save(url, DELTA_2, specs_of(tables), [[rows]], parent=FULL, states=dense, samples=2)
    return tables, after


def faulty(url: Path) -> SaveCatalog:
    """The same saves in the faulty file system."""
    target = fsspec.filesystem("faulty")
    for path in url.rglob("*"):
        if path.is_file():
            target.pipe_file(f"/run/{path.relative_to(url)}", path.read_bytes())
    return SaveCatalog("faulty://run", run="r", retry=FAST)


def test_reads_that_fail_are_tried_again(tmp_path: Path, faults: dict[str, int]) -> None:
    _, after = two_saves(tmp_path)
    catalog = faulty(tmp_path)
    faults["safetensors"] = 2
    rows = after.room(after.piece(0, 1003))
    report = restore_newest(catalog, [rows], states=["dense"])
    after.assert_equal(rows)
    assert (report.skipped, report.states["dense"]["w"].tolist()) == ((), [0.0, 0.0])
    assert verify(catalog).ok


@pytest.mark.parametrize("file", ["shard-0000", "state-dense"])
def test_a_save_that_cannot_be_read_is_done_without(tmp_path: Path, faults: dict[str, int], file: str) -> None:
    (before, *_), _ = two_saves(tmp_path)
    catalog = faulty(tmp_path)
    faults[f"{DELTA_2}/{file}"] = -1
    rows = before.room(before.piece(0, 1003))
    report = restore_newest(catalog, [rows], states=["dense"])
    before.assert_equal(rows)
    assert (report.save_ids, report.samples, report.states["dense"]["w"].tolist()) == ((FULL,), 1, [1.0, 1.0])
    assert "tried 3 times: OSError: [Errno 5] Input/output error" in report.skipped[0].reason
    found = verify(catalog)
    assert (found.ok, found.newest) == (False, FULL)
    assert "Input/output error" in found.saves[1].faults[0]


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_state_that_is_damaged_takes_the_rows_back_with_it(tmp_path: Path) -> None:
    (before, *_), _ = two_saves(tmp_path)
    damage(tmp_path / "saves" / DELTA_2 / "state-dense.safetensors")
    rows = before.room(before.piece(0, 1003))
    report = restore_newest(SaveCatalog(str(tmp_path), run="r"), [rows], states=["dense", "rng"])
    before.assert_equal(rows)
    assert (report.save_ids, report.states["dense"]["w"].tolist()) == ((FULL,), [1.0, 1.0])
    assert verify(SaveCatalog(str(tmp_path), run="r")).newest == FULL


def test_state_of_an_older_save_is_nothing_that_a_restore_reads(tmp_path: Path) -> None:
    _, after = two_saves(tmp_path)
    damage(tmp_path / "saves" / FULL / "state-dense.safetensors")
    (tmp_path / "saves" / FULL / "state-rng.safetensors").unlink()
    catalog = SaveCatalog(str(tmp_path), run="r")
    rows = after.room(after.piece(0, 1003))
    assert restore_newest(catalog, [rows], states=["dense"]).save_ids == (FULL, DELTA_2)
    after.assert_equal(rows)
    report = verify(catalog)
    assert (report.newest, report.ok) == (DELTA_2, False)
    assert [save.unusable is None for save in report.saves] == [False, True]


def test_a_save_without_a_state_that_is_wanted_will_not_do(tmp_path: Path) -> None:
    (before, *_), _ = two_saves(tmp_path, states=False)
    catalog = SaveCatalog(str(tmp_path), run="r")
    room = [before.room(before.piece(0, 1003))]
    report = restore_newest(catalog, room, states=["dense"])
    assert report.save_ids == (FULL,)
    assert "has no state 'dense'; it has none" in report.skipped[0].reason
    with pytest.raises(SaveNotFound, match=r"none of 2 saves can be used.*no state 'elsewhere'"):
        restore_newest(catalog, room, states=["elsewhere"])


def test_values_beyond_fp16_are_refused_and_no_older_save_is_taken(tmp_path: Path) -> None:
    tables = three_tables("exact_sgd")
    save_full(tmp_path, tables)
    tables[0].weight[7, 3] = -7e4
    save_full(tmp_path, tables, "0000-00000002-full")
    rows = PieceRows(tables[0].piece(0, 1003), torch.empty(1003, 12, dtype=torch.float16))
    with pytest.raises(CheckpointError, match=r"big\[0:1003, 0:12\]: .*70000.*float16.*embedding\.weights_precision"):
        restore_newest(SaveCatalog(str(tmp_path), run="r"), [rows])


@pytest.mark.parametrize("file", ["shard-0000", "state-dense"])
def test_everybody_goes_back_to_a_save_of_which_all_was_read(tmp_path: Path, file: str) -> None:
    two_saves(tmp_path)
    catalog = SaveCatalog(str(tmp_path), run="r")
    assert choose_undamaged(catalog, exact=True).chain.save_ids == (FULL, DELTA_2)
    damage(tmp_path / "saves" / DELTA_2 / f"{file}.safetensors")
    choice = choose_undamaged(catalog, exact=True)
    assert choice.chain.save_ids == (FULL,)
    assert [one.save_id for one in choice.skipped] == [DELTA_2]
    assert f"file {file}.safetensors: checksum" in choice.skipped[0].reason
    damage(tmp_path / "saves" / FULL / "shard-0003.safetensors")
    with pytest.raises(SaveNotFound, match=rf"none of 2 saves can be used: {DELTA_2}: .*; {FULL}: .*shard-0003"):
        choose_undamaged(catalog, exact=True)


def test_of_older_saves_everybody_needs_the_rows_alone(tmp_path: Path) -> None:
    two_saves(tmp_path)
    damage(tmp_path / "saves" / FULL / "state-dense.safetensors")
    choice = choose_undamaged(SaveCatalog(str(tmp_path), run="r"), exact=True)
    assert (choice.chain.save_ids, choice.skipped) == ((FULL, DELTA_2), ())


def test_saves_that_cannot_be_read_now_are_not_taken_for_none(tmp_path: Path, faults: dict[str, int]) -> None:
    two_saves(tmp_path)
    catalog = faulty(tmp_path)
    faults[f"{DELTA_2}/shard"] = -1
    assert choose_undamaged(catalog).chain.save_ids == (FULL,)
    faults["shard"] = -1
    with pytest.raises(StorageError, match=r"none of 2 saves can be used.*Input/output error"):
        choose_undamaged(catalog)
    faults.clear()
    FaultyFileSystem.closed.append("shard")
    with pytest.raises(StorageError, match=r"none of 2 saves can be used.*could not open.*Input/output error"):
        choose_undamaged(catalog)


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def test_damaged_manifests_are_said_where_no_save_is_left(tmp_path: Path) -> None:
    two_saves(tmp_path)
    catalog = SaveCatalog(str(tmp_path), run="r")
    tear(tmp_path / "saves" / FULL / "manifest.json")
    with pytest.raises(SaveNotFound, match=rf"none of 1 saves can be used: {DELTA_2}: .*; {FULL}: .*manifest\.json: "):
        restore_newest(catalog, [])
    tear(tmp_path / "saves" / DELTA_2 / "manifest.json")
    with pytest.raises(SaveNotFound, match=rf"^no save can be used; {DELTA_2}: .*manifest\.json: .*; {FULL}: "):
        restore_newest(SaveCatalog(str(tmp_path), run="r"), [])
