"""The ways to save: each is called while training runs, and tells how long it held the rows and when it was durable."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from benchmarks.checkpoint.loop import TrainingLoop
from benchmarks.checkpoint.tables import Tables
from checkpoint.buffers import aligned_memory
from checkpoint.manifest import Encoding
from checkpoint.shard_save import ShardSave
from checkpoint.store import CheckpointStore
from checkpoint.writer import ShardWriter

PRIORITY_FRACTION = 0.125
_STEP_BYTES = 8 << 20
_LARGE_TABLE_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """One save. ``longest_stall_s`` is the longest time that the rows were held in one go."""

    stall_s: float
    longest_stall_s: float
    durable_s: float
    bytes: int


class Ways:
    """Every way over the same live tables."""

    def __init__(self, tables: Tables, loop: TrainingLoop, folder: Path) -> None:
        self._tables, self._loop, self._folder = tables, loop, folder
        self._writer = ShardWriter()
        self._store = CheckpointStore(str(folder / "penumbra"), run="benchmark")
        self._selected = {
            index: torch.randperm(rows)[: int(rows * PRIORITY_FRACTION)].sort().values
            for index, rows in enumerate(tables.rows.values())
            if rows > _LARGE_TABLE_ROWS
        }
        self._warm = torch.from_numpy(aligned_memory(tables.nbytes + 64 * len(tables.pieces))).zero_()
        logging.getLogger("torch.distributed").setLevel(logging.ERROR)

    def all(self) -> dict[str, Callable[[], Outcome]]:
        """Name → save."""
        return {
            "plain copy": lambda: self._copy({}),
            "plain copy, priority rows": lambda: self._copy(self._selected),
            "full": lambda: self._save("fp32"),
            "full, consistent": lambda: self._save("fp32", consistent=True),
            "priority": lambda: self._save("fp32", priority=True),
            "full, int8": lambda: self._save("int8"),
            "full, int4": lambda: self._save("int4"),
            "DCP save": self._dcp_save,
            "DCP async_save": self._dcp_async,
        }

    def clean(self) -> None:
        """Delete what was written (between two measurements)."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._store = CheckpointStore(str(self._folder / "penumbra"), run="benchmark")

    def prepare_parent(self) -> str:
        """A full save for a priority save to continue."""
        self._save("fp32")
        return self._store.list()[-1].save_id

    def _copy(self, selected: dict[int, Tensor]) -> Outcome:
        """Not a save: what any must do at least, the same rows copied into warm memory while nobody updates them."""
        with self._loop.lock:
            started = time.perf_counter()
            filled = 0
            for index, piece in enumerate(self._tables.pieces):
                ids = selected.get(index)
                for source in (piece.weights, piece.states["sum"]):
                    rows = source.shape[0] if ids is None else ids.numel()
                    size = rows * source[:1].nbytes
                    out = self._warm[filled : filled + size].view(torch.float32).view(rows, *source.shape[1:])
                    if ids is None:
                        out.copy_(source)
                    else:
                        torch.index_select(source, 0, ids, out=out)
                    filled += -(-size // 64) * 64
            seconds = time.perf_counter() - started
        return Outcome(seconds, seconds, seconds, 0)

    def _save(self, encoding: Encoding, *, consistent: bool = False, priority: bool = False) -> Outcome:
        """As a shard does it: a step whenever no request is being served."""
        parent = self._store.list()[-1].save_id if priority else None
        started = time.perf_counter()
        ticket = self._store.begin(
            "priority" if priority else "full",
            timeline=0,
            samples=0,
            consistent=consistent,
            tables=self._tables.specs,
            parent=parent,
        )
        lock, longest = self._loop.lock, 0.0
        selections: dict[int, Tensor | None] = {**self._selected} if priority else {}
        with lock:
            save = ShardSave(ticket, 0, self._tables.pieces, selections, encoding, self._writer)
            if consistent:
                self._loop.before_update = save.before_update
        copied = False
        while not copied:
            with lock:
                before = save.stall_s
                copied = save.step(_STEP_BYTES)
                longest = max(longest, save.stall_s - before)
            if not copied:
                self._writer.pool.wait_free(self._writer.pool.count // 2)
        with lock:
            self._loop.before_update = None
        entries = save.finish()
        manifest = self._store.commit(ticket, entries)
        durable = time.perf_counter() - started
        return Outcome(save.stall_s, longest, durable, sum(file.bytes for file in manifest.files))

    def _dcp_save(self) -> Outcome:
        target = self._folder / "dcp"
        with self._loop.lock:
            started = time.perf_counter()
            dcp_save(self._tables.state_dict(), checkpoint_id=str(target))
            seconds = time.perf_counter() - started
        return Outcome(seconds, seconds, seconds, _size(target))

    def _dcp_async(self) -> Outcome:
        target = self._folder / "dcp-async"
        with self._loop.lock:
            started = time.perf_counter()
            future = async_save(self._tables.state_dict(), checkpoint_id=str(target))
            stall = time.perf_counter() - started
        future.result()  # type: ignore[union-attr]
        return Outcome(stall, stall, time.perf_counter() - started, _size(target))


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
