"""Saves through ``checkpoint`` on a storage that fails: the error, what is the newest afterwards, and the next save."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint.catalog import SaveCatalog
from checkpoint.errors import (
    CheckpointError,
    SaveIncomplete,
    SaveNotFound,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageSlow,
)
from checkpoint.piece_rows import PieceRows
from checkpoint.restore import restore_newest
from checkpoint.retry import RetryPolicy
from checkpoint.shard_save import ShardSave
from checkpoint.state_file import write_state
from checkpoint.store import CheckpointStore
from checkpoint.verify import verify
from checkpoint.writer import ShardWriter
from services.faults.storage import faulty_url, register_faulty
from services.faults.storage_switch import ActiveFault, turn_off, turn_on
from tests.checkpoint.save_parts import FAST, TABLES, assert_equal, copy_of, small_writer, whole

FULL_1, FULL_2, FULL_3 = (f"0000-{number:08d}-full" for number in (1, 2, 3))


class Run:
    """A run that saves to a faulty storage, and restores from it with fresh eyes."""

    def __init__(self, folder: Path, writer: ShardWriter) -> None:
        register_faulty()
        self.control = str(folder / "storage.json")
        self.folder = folder / "checkpoints"
        self.url = faulty_url(self.control, str(self.folder))
        self.store = CheckpointStore(self.url, run="r", retry=FAST)
        self.writer = writer
        self.rows = whole(TABLES, seed=1)

    def train(self, seed: int) -> list[PieceRows]:
        for live, new in zip(self.rows, whole(TABLES, seed), strict=True):
            live.weights.copy_(new.weights)
            for name, state in new.states.items():
                live.states[name].copy_(state)
        return copy_of(self.rows)

    def save(self, samples: int, timeout_s: float = 30.0) -> None:
        ticket = self.store.begin("full", timeline=0, samples=samples, consistent=True, tables=TABLES, parent=None)
        try:
            save = ShardSave(ticket, 0, self.rows, {}, "fp32", self.writer)
            files = save.finish(timeout_s)
            files.append(write_state(ticket, "dense", {"w": torch.ones(10)}, retry=FAST))
            self.store.commit(ticket, files)
        except CheckpointError:
            with contextlib.suppress(StorageError):  # where it does not even let anything be deleted, sweep will
                self.store.abort(ticket)
            raise

    def on(self, **fault: Any) -> None:
        turn_on(self.control, ActiveFault.model_validate({"id": "1", "fault": fault}))
        time.sleep(0.06)

    def off(self) -> None:
        turn_off(self.control, "1")
        time.sleep(0.06)

    def check_newest(self, save_id: str, rows: list[PieceRows]) -> list[str]:
        """Through the faulty URL and on the plain folder alike; returns the saves that were passed over."""
        skipped = []
        for url in (self.url, str(self.folder)):
            into = copy_of(rows)
            for piece in into:
                piece.weights.fill_(torch.nan)
            report = restore_newest(SaveCatalog(url, run="r", retry=FAST), into)
            assert report.save_ids == (save_id,)
            assert_equal(into, rows)
            skipped = [skip.save_id for skip in report.skipped]
        return skipped


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    writer = small_writer()
    yield Run(tmp_path, writer)
    writer.close()


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ({"kind": "error"}, StorageError, "tried 3 times: OSError.*Input/output error"),
        ({"kind": "error", "operations": ["write"], "match": "*.safetensors"}, StorageError, "could not put .* bytes"),
        ({"kind": "error", "operations": ["write"], "match": "*/manifest.json"}, StorageError, r"manifest\.json"),
        ({"kind": "full"}, StorageFull, "No space left on device .*checkpoint.retention"),
        ({"kind": "full", "after_bytes": 200_000}, StorageFull, "No space left on device"),
        ({"kind": "denied"}, StorageDenied, "Permission denied .*Make it writable"),
        ({"kind": "denied", "operations": ["write"]}, StorageDenied, "Permission denied"),
        ({"kind": "read_only"}, StorageDenied, "Read-only file system"),
        ({"kind": "slow", "s_per_operation": 60, "match": "*.safetensors"}, StorageSlow, r"allowed are 0\.5 s"),
        ({"kind": "torn", "after_bytes": 5000}, SaveIncomplete, "5,000 bytes, shard 0 wrote"),
    ],
)
def test_a_failed_save_leaves_the_one_before_and_the_next_one_works(
    run: Run, fault: dict[str, Any], error: type[Exception], message: str
) -> None:
    before = run.train(1)
    run.save(100)
    run.train(2)
    run.on(**fault)
    with pytest.raises(error, match=message) as caught:
        run.save(200, timeout_s=0.5 if fault["kind"] == "slow" else 30.0)
    assert type(caught.value) is error
    run.off()
    run.check_newest(FULL_1, before)
    run.store.sweep()
    after = run.train(3)
    run.save(300)
    newest = max(save.save_id for save in run.store.list())
    run.check_newest(newest, after)
    assert newest in (FULL_2, FULL_3)  # where nothing could be begun, no number was used
    assert verify(SaveCatalog(run.url, run="r")).ok


def test_slow_storage_only_takes_longer(run: Run) -> None:
    run.on(kind="slow", s_per_operation=0.02)
    rows = run.train(1)
    run.save(100)
    run.check_newest(FULL_1, rows)


def test_now_and_then_an_error_is_tried_again(tmp_path: Path) -> None:
    patient = RetryPolicy(attempts=40, first_delay_s=0.001, max_delay_s=0.002)
    run = Run(tmp_path, ShardWriter(retry=patient))
    run.store = CheckpointStore(run.url, run="r", retry=patient)
    run.on(kind="error", share=0.5, match="*/saves/*shard*")
    rows = run.train(1)
    run.save(100)
    run.off()
    run.check_newest(FULL_1, rows)
    run.writer.close()


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "corrupt", "match": "*.safetensors"},
        {"kind": "corrupt", "match": "*/manifest.json"},
        {"kind": "torn", "match": "*/manifest.json", "after_bytes": 50},
        {"kind": "torn", "match": "*shard*", "after_bytes": 5000, "padded": True},
        {"kind": "torn", "match": "*shard*", "after_bytes": 0, "padded": True},
    ],
)
def test_a_damaged_save_is_refused_and_the_one_before_restored(run: Run, fault: dict[str, Any]) -> None:
    before = run.train(1)
    run.save(100)
    run.train(2)
    run.on(**fault)
    run.save(200)  # nobody notices
    run.off()
    checked = verify(SaveCatalog(run.url, run="r"))
    assert checked.newest == FULL_1
    if fault["match"] == "*/manifest.json":
        assert not checked.ok and list(checked.damaged) == [FULL_2]
    else:
        assert not checked.ok and checked.saves[1].faults
    assert run.check_newest(FULL_1, before) == [FULL_2]
    after = run.train(3)
    run.save(300)
    assert run.check_newest(FULL_3, after) == []


def test_a_restore_from_a_storage_that_fails_says_so_and_works_afterwards(run: Run) -> None:
    rows = run.train(1)
    run.save(100)
    run.on(kind="error", operations=["read"], match="*.safetensors")
    with pytest.raises(SaveNotFound, match=r"could not open, tried 3 times: .*Input/output error"):
        restore_newest(SaveCatalog(run.url, run="r", retry=FAST), copy_of(rows))
    run.off()
    run.check_newest(FULL_1, rows)
