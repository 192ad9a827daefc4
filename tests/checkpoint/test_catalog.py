"""What a reader sees of a store: complete saves of its run and timeline, and why others are not among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint.catalog import SaveCatalog
from checkpoint.errors import SaveCorrupt, SaveIncomplete, SaveNotFound
from checkpoint.store import CheckpointStore
from tests.checkpoint.save_parts import FAST, TABLES, save_all, small_writer, whole


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Two saves: a full one and a delta."""
    store, writer = CheckpointStore(str(tmp_path), run="r", retry=FAST), small_writer()
    full = save_all(store, whole(TABLES, 0), writer, samples=10)
    save_all(store, whole(TABLES, 1), writer, kind="delta", parent=full.save_id, samples=20)
    return store


_FULL, _DELTA = "0000-00000001-full", "0000-00000002-delta"


def _catalog(tmp_path: Path, run: str = "r") -> SaveCatalog:
    return SaveCatalog(str(tmp_path), run=run, retry=FAST)


def test_a_store_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    catalog = _catalog(tmp_path / "nowhere")
    assert catalog.list() == []
    assert catalog.incomplete() == []
    with pytest.raises(SaveNotFound, match=r"no save 'x' under .*nowhere; the newest there: none"):
        catalog.read_manifest("x")
    assert not (tmp_path / "nowhere").exists()


def test_saves_come_oldest_first_as_they_were_committed(store: CheckpointStore, tmp_path: Path) -> None:
    catalog = _catalog(tmp_path)
    assert catalog.list() == store.list()
    assert [save.save_id for save in catalog.list()] == [_FULL, _DELTA]
    assert catalog.read_manifest(_DELTA).parent == _FULL
    (file,) = catalog.read_manifest(_FULL).files
    with catalog.open_file(_FULL, file) as opened:
        assert opened.read() == (tmp_path / "saves" / _FULL / file.path).read_bytes()


def test_a_save_is_seen_from_its_commit_on_and_not_before(store: CheckpointStore, tmp_path: Path) -> None:
    catalog = _catalog(tmp_path)
    ticket = store.begin("full", timeline=0, samples=30, consistent=True, tables=TABLES, parent=None)
    assert ticket.save_id not in [save.save_id for save in catalog.list()]
    assert catalog.incomplete() == [ticket.save_id]
    with pytest.raises(SaveIncomplete, match=f"save {ticket.save_id} was never completed"):
        catalog.read_manifest(ticket.save_id)
    store.abort(ticket)
    save_all(store, whole(TABLES, 2), small_writer())
    assert len(catalog.list()) == 3, "what was missing was remembered"


def test_a_timeline_sees_its_own_saves_and_its_past(store: CheckpointStore, tmp_path: Path) -> None:
    timeline = store.open_timeline(_FULL)
    save = save_all(store, whole(TABLES, 2), small_writer(), timeline=timeline)
    catalog = _catalog(tmp_path)
    assert [save.save_id for save in catalog.list()] == [_FULL, save.save_id]
    assert [save.save_id for save in catalog.list(0)] == [_FULL, _DELTA]
    assert catalog.read_manifest(_DELTA).save_id == _DELTA, "hidden, and still there"
    assert store.open_timeline(None) == timeline + 1
    assert catalog.list() == []


def test_what_is_no_save_is_not_looked_at(store: CheckpointStore, tmp_path: Path) -> None:
    for name in ("lost+found", "00000-00000003-full", "0000-00000003-odd"):
        (tmp_path / "saves" / name).mkdir()
    (tmp_path / "timelines").mkdir()
    (tmp_path / "timelines" / "notes.txt").write_text("not JSON")
    catalog = _catalog(tmp_path)
    assert len(catalog.list()) == 2
    assert catalog.incomplete() == []


def test_a_manifest_of_another_save_or_run_is_refused_with_both_names(store: CheckpointStore, tmp_path: Path) -> None:
    with pytest.raises(SaveCorrupt, match=f"is of save {_FULL} of run 'r', expected {_FULL} of 'other'"):
        _catalog(tmp_path, "other").read_manifest(_FULL)
    assert _catalog(tmp_path, "other").list() == []
    saves = tmp_path / "saves"
    (saves / _DELTA / "manifest.json").write_bytes((saves / _FULL / "manifest.json").read_bytes())
    catalog = _catalog(tmp_path)
    with pytest.raises(SaveCorrupt, match=f"is of save {_FULL} of run 'r', expected {_DELTA}"):
        catalog.read_manifest(_DELTA)
    assert [save.save_id for save in catalog.list()] == [_FULL]
    assert (catalog.incomplete(), list(catalog.damaged())) == ([], [_DELTA])


def test_a_file_that_is_short_or_gone_is_refused_when_it_is_opened(store: CheckpointStore, tmp_path: Path) -> None:
    catalog = _catalog(tmp_path)
    (file,) = catalog.read_manifest(_FULL).files
    path = tmp_path / "saves" / _FULL / file.path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SaveIncomplete, match=f"{file.bytes - 1:,} bytes, its manifest says {file.bytes:,}: torn"):
        catalog.open_file(_FULL, file)
    path.unlink()
    with pytest.raises(SaveIncomplete, match="is missing, and its manifest names it"):
        catalog.open_file(_FULL, file)
