"""A process that updates rows and saves them, and is killed; it logs what each save must hold before committing it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from checkpoint.errors import SaveNotFound
from checkpoint.manifest import SaveKind, TableSpec
from checkpoint.piece_rows import PieceRows
from checkpoint.priority.dirty import DirtyRows
from checkpoint.priority.tracker import Watched
from checkpoint.restore import restore_newest
from checkpoint.retention import RetentionPolicy
from checkpoint.shard_save import ShardSave
from checkpoint.state_file import write_state
from checkpoint.store import CheckpointStore
from tests.checkpoint.kill_points import KillPoint, arm
from tests.checkpoint.save_parts import FAST, copy_of, small_writer, whole

Step = tuple[SaveKind | Literal["retain"], bool]
"""What to do, and whether as one consistent cut."""

LOOP: Final[tuple[Step, ...]] = (
    ("full", False),
    ("delta", True),
    ("priority", False),
    ("retain", False),
    ("full", True),
    ("delta", False),
    ("priority", True),
    ("delta", False),
)


def tables(rows: int) -> dict[str, TableSpec]:
    """Row-wise state, state by element, and none."""
    return {
        "user": TableSpec(rows=rows, dim=16, dtype="fp32", optimizer="exact_row_wise_adagrad"),
        "item": TableSpec(rows=rows // 10, dim=5, dtype="fp32", optimizer="exact_adagrad"),
        "tiny": TableSpec(rows=3, dim=8, dtype="fp32", optimizer="exact_sgd"),
    }


def live(
    folder: Path, log: Path, rows: int, seed: int, steps: Sequence[Step] | None, kill: KillPoint | None = None
) -> None:
    """Go on from the newest save; do ``steps``, or save until somebody ends it."""
    torch.set_num_threads(1)
    life = _Life(folder, log, rows, seed)
    (log / f"ready-{os.getpid()}").touch()
    arm(folder, log / f"calls-{os.getpid()}", kill)
    for kind, consistent in itertools.cycle(LOOP) if steps is None else steps:
        if kind == "retain":
            life.store.retain(RetentionPolicy(keep_last=1))
            life.store.sweep()
        else:
            life.save(kind, consistent)


def logged(log: Path, save_id: str) -> dict[str, Tensor]:
    """What a restore of the save must give, by ``table.weight`` and ``table.state``."""
    return load_file(log / f"{save_id}.safetensors")


def as_tensors(pieces: Sequence[PieceRows]) -> dict[str, Tensor]:
    found = {f"{rows.piece.table}.weight": rows.weights for rows in pieces}
    return found | {f"{rows.piece.table}.{name}": state for rows in pieces for name, state in rows.states.items()}


class _Life:
    def __init__(self, folder: Path, log: Path, rows: int, seed: int) -> None:
        self.store = CheckpointStore(str(folder), run="r", retry=FAST)
        self.store.sweep()
        self._log, self._tables = log, tables(rows)
        self._generator = torch.Generator().manual_seed(seed)
        self._live = whole(self._tables, seed)
        self._samples, self._parent = 0, None
        try:
            report = restore_newest(self.store, self._live)
            self._samples, self._parent = report.samples, report.save_ids[-1]
        except SaveNotFound:
            pass
        self._reference = copy_of(self._live)
        """What the newest save of each row has."""
        watched = Watched.of([p.piece for p in self._live], self._tables)
        self._dirty = DirtyRows(watched, {"dirty_rows": torch.zeros(watched.rows, dtype=torch.uint8)})
        self._writer = small_writer(4, 65536)

    def save(self, kind: SaveKind, consistent: bool) -> None:
        if kind != "full" and self._parent is None:
            return
        selections = self._select(kind)
        ticket = self.store.begin(
            kind,
            timeline=0,
            samples=self._samples,
            consistent=consistent,
            tables=self._tables,
            parent=None if kind == "full" else self._parent,
        )
        instant = copy_of(self._live) if consistent else self._live

        def copied(index: int, ids: Tensor) -> None:
            self._dirty.clear(index, ids)
            _copy_rows(instant[index], self._reference[index], ids)

        save = ShardSave(ticket, 0, self._live, selections, "fp32", self._writer, on_copied=copied, chunk_bytes=32768)
        while not save.step(65536):
            self._update(save)
            self._writer.pool.wait_free(1)
        files = save.finish(timeout_s=60)
        files.append(write_state(ticket, "dense", {"samples": torch.tensor([self._samples])}, retry=FAST))
        if kind == "delta" and consistent:  # exactly what was touched: nothing else differs
            for one, other in zip(self._reference, instant, strict=True):
                assert torch.equal(one.weights, other.weights), one.piece
        unfinished = self._log / "unfinished"
        save_file(as_tensors(self._reference), unfinished)
        unfinished.rename(self._log / f"{ticket.save_id}.safetensors")
        self.store.commit(ticket, files, {"data_position": self._samples})
        self._parent = ticket.save_id
        self._samples += 1
        self._update(None)

    def _select(self, kind: SaveKind) -> dict[int, Any]:
        if kind == "full":
            return {}
        if kind == "delta":
            return {index: self._dirty.select(index) for index in range(len(self._live))}
        rows = self._live[0].piece.rows
        return {0: torch.randperm(rows, generator=self._generator)[: rows // 8].sort().values}

    def _update(self, save: ShardSave | None) -> None:
        """As a push does it."""
        for index, rows in enumerate(self._live):
            ids = torch.randint(0, rows.piece.rows, (50,), generator=self._generator).unique()
            if save is not None:
                save.before_update(index, ids)
            rows.weights[ids] += torch.rand(ids.numel(), rows.piece.dim, generator=self._generator)
            for state in rows.states.values():
                state[ids] += 1
            self._dirty_mark(index, ids)

    def _dirty_mark(self, index: int, ids: Tensor) -> None:
        counts = torch.zeros(len(self._live) + 1, dtype=torch.int64)
        counts[index + 1 :] = ids.numel()
        self._dirty.observe(ids, counts)


def _copy_rows(source: PieceRows, target: PieceRows, ids: Tensor) -> None:
    target.weights[ids] = source.weights[ids]
    for name, state in source.states.items():
        target.states[name][ids] = state[ids]
