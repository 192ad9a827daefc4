"""A record of a timeline that is damaged or missing is refused: it would hide saves, or show hidden ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint.catalog import SaveCatalog
from checkpoint.errors import SaveCorrupt, SaveNotFound
from checkpoint.manifest import TableSpec
from checkpoint.store import CheckpointStore
from checkpoint.timelines import TimelineRecord
from checkpoint.verify import verify
from tests.checkpoint.saves import write_save

TABLES = {"t": TableSpec(rows=3, dim=2, dtype="fp32", optimizer="exact_sgd")}
FULL, DELTA_2, DELTA_3 = "0000-00000001-full", "0000-00000002-delta", "0000-00000003-delta"


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A rollback to ``DELTA_2`` hides ``DELTA_3``; the record of it."""
    for save_id, parent in ((FULL, None), (DELTA_2, FULL), (DELTA_3, DELTA_2)):
        write_save(tmp_path, save_id, TABLES, [], parent=parent)
    assert CheckpointStore(str(tmp_path), run="r").open_timeline(DELTA_2) == 1
    return tmp_path / "timelines" / "0001.json"


def catalog(record: Path) -> SaveCatalog:
    return SaveCatalog(str(record.parents[1]), run="r")


def test_a_rollback_hides_what_was_saved_since(record: Path) -> None:
    assert [save.save_id for save in catalog(record).list()] == [FULL, DELTA_2]
    assert [save.save_id for save in catalog(record).list(timeline=0)] == [FULL, DELTA_2, DELTA_3]
    assert verify(catalog(record)).ok
    with pytest.raises(SaveNotFound, match="timeline 2 was never opened; the newest is 1"):
        catalog(record).list(timeline=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace(b"00000002-delta", b"00000003-delta"), "altered after it was written"),
        (lambda text: text[:20], "torn"),
        (lambda text: b"", "torn"),
        (lambda text: TimelineRecord(timeline=2, parent=0, from_save=DELTA_2, opened_unix_s=0).to_text(), "timeline 2"),
        (lambda text: TimelineRecord(timeline=1, parent=0, from_save="x", opened_unix_s=0).to_text(), "save 'x'"),
        (
            lambda text: TimelineRecord(
                timeline=1, parent=0, from_save="0001-00000009-full", opened_unix_s=0
            ).to_text(),
            "cannot start from",
        ),
    ],
    ids=["digit", "torn", "empty", "of another", "no save", "of itself"],
)
def test_a_damaged_record_is_refused_and_verify_says_so(record: Path, change: object, message: str) -> None:
    record.write_bytes(change(record.read_bytes()))  # type: ignore[operator]
    with pytest.raises(SaveCorrupt, match=rf"(?s)timelines/0001\.json: .*{message}.*bring it back from a copy"):
        catalog(record).list()
    report = verify(catalog(record))
    assert (report.ok, report.newest, len(report.saves)) == (False, None, 3)
    assert message in (report.timelines or "")


def test_a_missing_record_is_refused(record: Path) -> None:
    store = CheckpointStore(str(record.parents[1]), run="r")
    assert store.open_timeline(DELTA_2) == 2
    text = record.read_bytes()
    record.unlink()
    with pytest.raises(SaveCorrupt, match=r"0001\.json is missing, though timeline 2 was opened later"):
        catalog(record).list()
    record.write_bytes(text)
    write_save(record.parents[1], "0002-00000004-delta", TABLES, [], parent=DELTA_2)
    assert len(catalog(record).list()) == 3
    (record.parent / "0002.json").unlink()
    with pytest.raises(SaveCorrupt, match=r"0002\.json is missing: 0002-00000004-delta is of it"):
        catalog(record).list()
    assert not verify(catalog(record)).ok


def test_other_files_beside_the_records_are_nobody(record: Path) -> None:
    (record.parent / "notes.json").write_text("{")
    (record.parent / "0002.json.tmp").write_text("{")
    for name in ("00001.json", "00002.json", "\u0660\u0660\u0660\u0661.json"):  # a record has one name only
        (record.parent / name).write_text("{")
    assert len(catalog(record).list()) == 2
