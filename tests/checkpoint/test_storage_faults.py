"""Storage fails under a save: it says what, training goes on, what was saved is unharmed, and the next save works."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import fsspec
import pytest
import torch
from torch import Tensor

from checkpoint.errors import StorageDenied, StorageError, StorageFull, StorageSlow
from checkpoint.manifest import MANIFEST
from checkpoint.piece_rows import PieceRows
from checkpoint.priority.dirty import DirtyRows
from checkpoint.priority.mfu import MfuTracker
from checkpoint.priority.tracker import Watched
from checkpoint.restore import restore_newest
from checkpoint.retry import RetryPolicy
from checkpoint.shard_save import ShardSave
from checkpoint.state_file import write_state
from checkpoint.store import CheckpointStore
from checkpoint.ticket import SaveTicket
from checkpoint.writer import FileJob
from tests.checkpoint import storage_faults
from tests.checkpoint.save_parts import FAST, TABLES, assert_equal, copy_of, save_all, small_writer, whole
from tests.checkpoint.storage_faults import StuckSink, UnsteadyFileSystem


class Shard:
    """Rows, what trackers saw of them, and saves of what is dirty."""

    def __init__(self, url: str, retry: RetryPolicy = FAST) -> None:
        self.url = url
        self.writer = small_writer()
        self.store = CheckpointStore(url, run="r", retry=retry)
        self.rows = whole(TABLES, 0)
        watched = Watched.of([rows.piece for rows in self.rows], TABLES)
        self.dirty = DirtyRows(watched, {"dirty_rows": torch.zeros(watched.rows, dtype=torch.uint8)})
        self.counts = MfuTracker(watched, {"access_counters": torch.zeros(watched.rows, dtype=torch.int32)}, every=1)
        self.parent = save_all(self.store, self.rows, self.writer, consistent=True).save_id
        self.saved = copy_of(self.rows)
        self.push()

    def push(self) -> None:
        """Every second row changes."""
        ids = [torch.arange(0, rows.piece.rows, 2) for rows in self.rows]
        for rows, changed in zip(self.rows, ids, strict=True):
            rows.weights[changed] += 1
        offsets = torch.tensor([0, *(len(changed) for changed in ids)]).cumsum(0)
        self.dirty.observe(torch.cat(ids), offsets)
        self.counts.observe(torch.cat(ids), offsets)

    def begin(self) -> SaveTicket:
        return self.store.begin("delta", timeline=0, samples=1, consistent=False, tables=TABLES, parent=self.parent)

    def save(self, ticket: SaveTicket, patience_s: float = 10.0) -> ShardSave:
        def copied(index: int, ids: Tensor) -> Callable[[], None]:
            undos = self.dirty.clear(index, ids), self.counts.clear(index, ids)
            return lambda: (self.dirty.give_back(undos[0]), self.counts.give_back(undos[1]))[0]

        selections = {index: self.dirty.select(index) for index in range(len(self.rows))}
        return ShardSave(
            ticket, 0, self.rows, selections, "fp32", self.writer,
            on_copied=copied, chunk_bytes=8192, patience_s=patience_s,
        )  # fmt: skip

    def seen(self) -> tuple[Tensor, ...]:
        return tuple(tensor.clone() for tracker in (self.dirty, self.counts) for tensor in tracker.tensors().values())

    def check_unharmed(self, seen: tuple[Tensor, ...]) -> None:
        """After a failed save: counters and buffers are back, and the save before it is the newest."""
        for one, other in zip(self.seen(), seen, strict=True):
            assert torch.equal(one, other)
        deadline = time.monotonic() + 20
        while self.writer.pool.free < self.writer.pool.count:
            assert time.monotonic() < deadline, "a buffer was lost"
            time.sleep(0.001)
        self.check_restores(self.parent, self.saved)

    def check_saves_again(self) -> None:
        ticket = self.begin()
        save = self.save(ticket)
        self.store.commit(ticket, save.finish(60))
        assert not self.dirty.tensors()["dirty_rows"].any()
        self.check_restores(ticket.save_id, self.rows)

    def check_restores(self, save_id: str, expected: list[PieceRows]) -> None:
        found = whole(TABLES, 5)
        report = restore_newest(CheckpointStore(self.url, run="r", retry=FAST), found)
        assert report.save_ids[-1] == save_id
        assert_equal(found, expected)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where nobody may look as well (pytest's own folders are for their user only)."""
    path = Path(tempfile.mkdtemp(prefix="penumbra-"))
    path.chmod(0o755)
    yield path / "saves"
    shutil.rmtree(path)


Fault = Callable[[Path], AbstractContextManager[None]]
_DISK_BYTES = 3 << 20


@contextmanager
def _gone(saves: Path) -> Iterator[None]:
    """Somebody deletes the directory of the save that is under way."""
    newest = max((saves / "saves").iterdir())
    away = saves / "elsewhere"
    newest.rename(away)
    yield
    away.rename(newest)


FAULTS: dict[str, tuple[bool, Fault, type[StorageError], str]] = {
    "file too large": (
        False,
        lambda saves: storage_faults.largest_file(40_000),
        StorageFull,
        r"saves/.*shard-0000.safetensors: could not write [\d,]+ bytes at [\d,]+: .*File too large.*ulimit -f",
    ),
    "permission denied": (
        False,
        storage_faults.not_permitted,
        StorageDenied,
        r"shard-0000.safetensors: could not create: PermissionError.*Make it writable.*storage_path",
    ),
    "directory gone": (False, _gone, StorageError, r"saves/.* is gone: the save was given up by somebody else"),
    "disk full": (
        True,
        storage_faults.filled,
        StorageFull,
        r"shard-0000.safetensors: needs [\d,]+ bytes, 0 are free\. Free some, or .*checkpoint\.retention",
    ),
    "read-only": (
        True,
        storage_faults.mounted_read_only,
        StorageDenied,
        r"shard-0000.safetensors: could not create: .*Read-only file system.*Make it writable.*storage_path",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_save_that_fails_harms_nothing(folder: Path, name: str) -> None:
    own_disk, fault, kind, message = FAULTS[name]
    with _disk(folder, own_disk):
        shard = Shard(str(folder))
        seen = shard.seen()
        ticket = shard.begin()
        save = shard.save(ticket)
        with fault(folder):
            while not save.step(16_384):  # never raises
                shard.writer.pool.wait_free(1, 0.1)
            with pytest.raises(kind, match=f"(?s){message}"):
                save.finish(60)
            shard.check_unharmed(seen)
        shard.store.abort(ticket)
        shard.check_saves_again()


@pytest.mark.parametrize("name", ["permission denied", "disk full", "read-only"])
def test_a_save_that_cannot_begin_harms_nothing(folder: Path, name: str) -> None:
    own_disk, fault, kind, _ = FAULTS[name]
    with _disk(folder, own_disk):
        shard = Shard(str(folder))
        seen = shard.seen()
        with fault(folder):
            with pytest.raises(kind, match=r"saves/.*: could not (create the directory|write \d+ bytes)"):
                shard.begin()
            shard.check_unharmed(seen)
        shard.check_saves_again()


def test_a_disk_that_fills_up_while_writing(folder: Path) -> None:
    with _disk(folder, True):
        shard = Shard(str(folder))
        seen = shard.seen()
        ticket = shard.begin()
        save = shard.save(ticket)
        save.step(65_536)
        shard.writer.pool.wait_free(shard.writer.pool.count - 1, 20)  # the file is there
        with storage_faults.filled(folder):
            with pytest.raises(
                StorageFull, match=r"could not write [\d,]+ bytes.*\(\d[\d,]* of 3,145,728 bytes are free"
            ):
                save.finish(60)
            shard.check_unharmed(seen)
        shard.store.abort(ticket)
        shard.check_saves_again()


def test_a_manifest_that_cannot_be_written_can_be_committed_later(folder: Path) -> None:
    shard = Shard(str(folder))
    ticket = shard.begin()
    files = shard.save(ticket).finish(60)
    with (
        storage_faults.largest_file(100),
        pytest.raises(StorageFull, match=rf"{MANIFEST}: could not write [\d,]+ bytes"),
    ):
        shard.store.commit(ticket, files)
    shard.check_restores(shard.parent, shard.saved)
    shard.store.commit(ticket, files)
    shard.check_restores(ticket.save_id, shard.rows)


def test_state_that_cannot_be_written(folder: Path) -> None:
    shard = Shard(str(folder))
    ticket = shard.begin()
    dense = {"weights": torch.arange(1000.0)}
    with (
        storage_faults.largest_file(100),
        pytest.raises(StorageFull, match=r"state-dense.safetensors: could not write"),
    ):
        write_state(ticket, "dense", dense, retry=FAST)
    entry = write_state(ticket, "dense", dense, retry=FAST)
    shard.store.commit(ticket, [*shard.save(ticket).finish(60), entry])
    shard.check_restores(ticket.save_id, shard.rows)


def test_storage_that_hangs_holds_up_nobody_for_long(folder: Path) -> None:
    """Steps copy what fits into the buffers and return; what has to wait gives up after its patience."""
    shard = Shard(str(folder))
    seen = shard.seen()
    pool = shard.writer.pool
    stuck = StuckSink()
    job = FileJob(stuck)
    buffer = pool.take()
    assert buffer is not None
    shard.writer.submit(job, buffer, buffer.size, last=True)
    ticket = shard.begin()
    save = shard.save(ticket, patience_s=0.05)
    for _ in range(200):
        assert not save.step(1 << 20)
    assert not save.copied and pool.free < pool.count  # back-pressure instead of memory
    with pytest.raises(StorageSlow, match=r"waited 0\.05 s for one of 4 buffers of 16,384 bytes; 0 bytes .*interval_s"):
        save.finish()
    stuck.gate.set()
    shard.check_unharmed(seen)
    assert job.result.result(20).bytes == 0
    shard.store.abort(ticket)
    shard.check_saves_again()


def test_storage_that_hangs_at_the_end(folder: Path) -> None:
    shard = Shard(str(folder))
    seen = shard.seen()
    shard.writer = small_writer(count=40)
    stuck = StuckSink()
    buffer = shard.writer.pool.take()
    assert buffer is not None
    shard.writer.submit(FileJob(stuck), buffer, buffer.size, last=True)
    ticket = shard.begin()
    save = shard.save(ticket)
    with pytest.raises(
        StorageSlow, match=r"0 of [\d,]+ bytes written 0\.\d s after the last was copied; allowed are 0\.1 s"
    ):
        save.finish(timeout_s=0.1)
    stuck.gate.set()
    shard.check_unharmed(seen)
    shard.store.abort(ticket)
    shard.check_saves_again()


def test_an_error_nobody_foresaw_reaches_the_caller_and_the_thread_lives_on(folder: Path) -> None:
    shard = Shard(str(folder))
    buffer = shard.writer.pool.take()
    assert buffer is not None
    sink = StuckSink(RuntimeError("a defect"))
    job = FileJob(sink)
    shard.writer.submit(job, buffer, 10, last=True)
    sink.gate.set()
    with pytest.raises(RuntimeError, match="a defect"):
        job.result.result(20)
    shard.check_saves_again()


@pytest.fixture
def unsteady() -> Iterator[str]:
    fsspec.register_implementation("unsteady", UnsteadyFileSystem, clobber=True)
    UnsteadyFileSystem.failures = 0
    yield "unsteady://run"
    UnsteadyFileSystem.store.clear()


def test_an_error_that_passes_is_not_seen(unsteady: str) -> None:
    shard = Shard(unsteady)
    ticket = shard.begin()
    UnsteadyFileSystem.failures, UnsteadyFileSystem.puts = FAST.attempts - 1, 0
    files = shard.save(ticket).finish(60)
    assert UnsteadyFileSystem.puts == FAST.attempts
    UnsteadyFileSystem.failures, UnsteadyFileSystem.puts = FAST.attempts - 1, 0
    shard.store.commit(ticket, files)
    assert UnsteadyFileSystem.puts == FAST.attempts
    shard.check_restores(ticket.save_id, shard.rows)


def test_an_error_that_stays_is_said_after_all_attempts(unsteady: str) -> None:
    shard = Shard(unsteady)
    seen = shard.seen()
    ticket = shard.begin()
    UnsteadyFileSystem.failures, UnsteadyFileSystem.puts = FAST.attempts, 0
    with pytest.raises(StorageError, match=r"shard-0000.safetensors: could not put [\d,]+ bytes, tried 3 times: .*503"):
        shard.save(ticket).finish(60)
    assert UnsteadyFileSystem.puts == FAST.attempts
    shard.check_unharmed(seen)
    shard.store.abort(ticket)
    shard.check_saves_again()


@contextmanager
def _disk(folder: Path, own: bool) -> Iterator[None]:
    if not own:
        yield
        return
    with storage_faults.small_disk(folder, _DISK_BYTES):
        yield
