"""A shard's part of a save, in one process: what is in it, and that a save that fails changes nothing."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from checkpoint.errors import CheckpointError, SaveRefused
from checkpoint.manifest import Manifest, TableSpec
from checkpoint.piece import Piece
from checkpoint.piece_rows import PieceRows
from checkpoint.restore import restore_newest
from checkpoint.store import CheckpointStore
from services.faults.phases import Phase
from services.identity import Address
from services.memory.store import MemoryStore
from services.shard.core import ShardCore
from services.shard.memory import ShardMemory
from services.shard.saver import ShardSaver
from services.shard.tracking import TrackingSpec
from tests.services.shard.reference import RATE, random_push, shard_spec

PIECES = (Piece("site", 0, 90, 0, 8), Piece("sex", 0, 3, 0, 8), Piece("user", 0, 400, 0, 8))
PATIENCE_S, TIMEOUT_S = 10.0, 30.0


class NoPhases:
    """Of a process that nobody injects faults into."""

    def enter(self, phase: Phase) -> None:
        pass

    def poison_due(self) -> bool:
        return False

    def leave(self) -> None:
        pass


class Shard:
    """A shard with its saver and a store, as ``ShardServer`` puts them together."""

    def __init__(self, keeper: str, folder: Path, optimizer: str, tracking: TrackingSpec) -> None:
        spec = dataclasses.replace(shard_spec(optimizer, PIECES), tracking=tracking)
        self.optimizer, self.turn, self.number = optimizer, threading.Lock(), 0
        self.core = ShardCore.create(keeper, Address("shard", 0, 1), spec)
        self.saver = ShardSaver(self.core.memory, 0, self.turn, NoPhases())
        self.store = CheckpointStore(str(folder), run="test")
        self.parent: str | None = None

    @property
    def memory(self) -> ShardMemory:
        return self.core.memory

    def push(self, count: int = 1) -> list[Tensor]:
        """So many pushes; returns the ids of the last one, by piece."""
        split: list[Tensor] = []
        for _ in range(count):
            self.number += 1
            grad, ids, offsets = random_push(self.number)
            with self.turn:
                self.core.push(0, self.number, grad, ids, offsets, RATE)
            starts = self.memory.starts(offsets)
            split = [ids[start:end] for start, end in pairwise(starts)]
        return split

    def begin(self, kind: Any, consistent: bool = True, where: str | None = None) -> Any:
        tables = {p.table: TableSpec(rows=p.rows, dim=8, dtype="fp32", optimizer=self.optimizer) for p in PIECES}
        parent = None if kind == "full" else self.parent
        ticket = self.store.begin(
            kind, timeline=0, samples=self.number, consistent=consistent, tables=tables, parent=parent
        )
        with self.turn:
            aimed = ticket if where is None else ticket.model_copy(update={"url": where})
            self.saver.begin(aimed, "fp32", PATIENCE_S, copy_share=1.0)
            self.core.before_update = self.saver.before_update if consistent else None
        return ticket

    def finish(self, ticket: Any) -> Manifest:
        saved = self.saver.finish(TIMEOUT_S)
        self.core.before_update = None
        manifest = self.store.commit(ticket, list(saved.files))
        self.parent = manifest.save_id
        return manifest

    def save(self, kind: Any, consistent: bool = True) -> Manifest:
        return self.finish(self.begin(kind, consistent))

    def live(self) -> list[Tensor]:
        memory = self.memory
        return [one.clone() for one in (memory.weights, memory.momentum) if one is not None]

    def restored(self) -> list[Tensor]:
        """What is in the saves, read by themselves."""
        rows = [
            PieceRows(
                one.piece,
                torch.full_like(one.weights, torch.nan),
                {name: torch.full_like(state, torch.nan) for name, state in one.states.items()},
            )
            for one in self.memory.pieces
        ]
        restore_newest(self.store, rows)
        found = [torch.cat([one.weights.flatten() for one in rows])]
        if rows[0].states:
            found.append(torch.cat([one.states["sum"].flatten() for one in rows]))
        return found

    def tracked(self) -> dict[str, Tensor]:
        """Counters, marks and whatever else is kept of rows since they were saved."""
        others = ("weights", "momentum1", "applied", "mark", "counts", "undo")
        return {n: a.clone() for n, a in self.memory.arrays.items() if not n.startswith(others)}


@pytest.fixture
def keeper() -> Iterator[str]:
    store = MemoryStore(f"test-{os.getpid()}-saver")
    yield store.name
    store.close()


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("optimizer", ["exact_sgd", "exact_adagrad", "exact_row_wise_adagrad"])
def test_a_consistent_save_has_the_rows_of_its_cut_whatever_is_pushed_meanwhile(
    keeper: str, tmp_path: Path, optimizer: str
) -> None:
    shard = Shard(keeper, tmp_path, optimizer, TrackingSpec())
    for _ in range(3):
        shard.push(20)
        ticket = shard.begin("full")
        at_cut = shard.live()
        done = threading.Event()
        pushed = threading.Thread(target=lambda d=done: [shard.push() for _ in iter(d.is_set, True)])  # type: ignore[misc]
        shard.push(5)
        pushed.start()
        try:
            shard.finish(ticket)
        finally:
            done.set()
            pushed.join()
        assert not same(shard.live(), at_cut)
        assert same(shard.restored(), at_cut)


@pytest.mark.parametrize("optimizer", ["exact_sgd", "exact_row_wise_adagrad"])
def test_delta_saves_have_the_changed_rows_and_no_others(keeper: str, tmp_path: Path, optimizer: str) -> None:
    shard = Shard(keeper, tmp_path, optimizer, TrackingSpec(deltas=True))
    shard.push(10)
    shard.save("full")
    for _ in range(3):
        touched = shard.push(1)
        manifest = shard.save("delta")
        rows = {piece.table: 0 for piece in PIECES}
        for file in manifest.files:
            for segment in file.segments:
                rows[segment.table] += segment.rows
        expected = {piece.table: len(torch.unique(ids)) for piece, ids in zip(PIECES, touched, strict=True)}
        assert rows == expected
        assert same(shard.restored(), shard.live())
    manifest = shard.save("delta")
    assert sum(segment.rows for file in manifest.files for segment in file.segments) == 0, "nothing changed"
    assert same(shard.restored(), shard.live())


TRACKERS = [
    ("partial_vanilla", "exact_adagrad"),
    ("cpr_mfu", "exact_sgd"),
    ("cpr_ssu", "exact_adagrad"),
    ("cpr_scar", "exact_row_wise_adagrad"),
    ("cpr_adagrad", "exact_row_wise_adagrad"),
]


def tracking(strategy: Any) -> TrackingSpec:
    tables = () if strategy == "partial_vanilla" else ("user", "site")
    return TrackingSpec(strategy=strategy, tables=tables, deltas=True, mfu_every=1, ssu_every=1)


@pytest.mark.parametrize(("strategy", "optimizer"), TRACKERS)
@pytest.mark.parametrize("consistent", [True, False])
@pytest.mark.parametrize("how", ["storage", "abort"])
def test_a_save_that_fails_gives_marks_and_counters_back(
    keeper: str, tmp_path: Path, strategy: str, optimizer: str, consistent: bool, how: str
) -> None:
    shard = Shard(keeper, tmp_path / "saves", optimizer, tracking(strategy))
    shard.push(20)
    shard.save("full")
    shard.push(30)
    before, pending = shard.tracked(), shard.memory.tracking.pending_accesses
    assert pending > 0 and any(int(one.count_nonzero()) for one in before.values())
    (tmp_path / "in the way").write_text("a file")
    for kind in ("full", "delta"):
        ticket = shard.begin(kind, consistent, where=str(tmp_path / "in the way") if how == "storage" else None)
        if how == "storage":
            with pytest.raises(CheckpointError):
                shard.saver.finish(TIMEOUT_S)
        else:
            with shard.turn:
                shard.saver.abort()
            with pytest.raises(SaveRefused):
                shard.saver.finish(TIMEOUT_S)
        shard.store.abort(ticket)
        after = shard.tracked()
        assert {name for name in before if not torch.equal(before[name], after[name])} == set()
        assert shard.memory.tracking.pending_accesses == pending
        assert not shard.memory.saving
    rows = shard.live()
    shard.save("delta")  # what was marked is saved now
    assert same(shard.restored(), rows)
    assert shard.memory.tracking.pending_accesses == 0


@pytest.mark.parametrize(("strategy", "optimizer"), TRACKERS[1:])
def test_priority_saves_lower_what_a_loss_would_cost(
    keeper: str, tmp_path: Path, strategy: str, optimizer: str
) -> None:
    shard = Shard(keeper, tmp_path, optimizer, tracking(strategy))
    shard.push(20)
    shard.save("full")
    assert shard.memory.tracking.pending_accesses == 0
    shard.push(30)
    accesses = sum(random_push(number)[1].numel() for number in range(21, 51))
    assert shard.memory.tracking.pending_accesses == accesses
    rows = shard.live()
    manifest = shard.save("priority", consistent=False)
    saved = {piece.table: 0 for piece in PIECES}
    for file in manifest.files:
        for segment in file.segments:
            saved[segment.table] += segment.rows
    assert saved["sex"] == 3 and saved["user"] <= 400 // 8 and saved["site"] <= 90 // 8 and saved["user"] > 0
    assert 0 < shard.memory.tracking.pending_accesses < accesses
    restored = shard.restored()
    numel = 0
    for one in shard.memory.pieces:  # every restored row is as it is now, or as it was in the full save
        own = slice(numel, numel + one.piece.numel)
        now, then = rows[0][own].view(-1, 8), restored[0][own].view(-1, 8)
        assert int((now == then).all(1).sum()) >= saved[one.piece.table]
        numel += one.piece.numel


def test_one_save_at_a_time(keeper: str, tmp_path: Path) -> None:
    shard = Shard(keeper, tmp_path, "exact_sgd", TrackingSpec())
    ticket = shard.begin("full")
    with pytest.raises(SaveRefused, match="a save is under way"), shard.turn:
        shard.saver.begin(ticket, "fp32", PATIENCE_S, copy_share=1.0)
    shard.finish(ticket)
    with pytest.raises(SaveRefused, match="no save is under way"):
        shard.saver.finish(TIMEOUT_S)
