"""Whatever happened to a run, a restore gives each row as it was when the newest visible save of it was cut."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from checkpoint.cut import first_cut
from checkpoint.errors import SaveNotFound
from checkpoint.piece import Piece
from checkpoint.piece_rows import PieceRows
from checkpoint.restore import restore_newest
from checkpoint.shard_save import ShardSave
from checkpoint.store import CheckpointStore
from tests.checkpoint.save_parts import small_writer
from tests.checkpoint.saves import Rows, Table, column_wise, row_wise, write_save

_ROWS, _DIM = 23, 6


@dataclass
class _Version:
    """The reference: what the newest visible saves together say, as whole tensors."""

    weight: Tensor
    states: dict[str, Tensor]
    sources: list[str]
    """Save by row."""


@dataclass
class _Saved:
    save_id: str
    timeline: int
    after: _Version
    before: str | None
    visible: bool = field(default=True)


class RunHistory(RuleBasedStateMachine):
    """A run of one table. Column pieces appear under element-wise state only: row-wise state of columns is lossy."""

    @initialize(
        optimizer=st.sampled_from(["exact_sgd", "exact_adagrad", "exact_row_wise_adagrad"]), seed=st.integers(0, 99)
    )
    def start(self, optimizer: str, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.table = Table.random("t", _ROWS, _DIM, optimizer, self.generator)
        self.pieces = row_wise(self.table, 4)
        self.dirty = torch.ones(_ROWS, dtype=torch.bool)
        self.timeline, self.sequence = 0, 0
        self.saves: list[_Saved] = []
        self.directory = Path(tempfile.mkdtemp())

    def teardown(self) -> None:
        shutil.rmtree(getattr(self, "directory", "/nonexistent"), ignore_errors=True)

    # -- what happens to a run

    @rule(ids=st.sets(st.integers(0, _ROWS - 1), min_size=1))
    def update(self, ids: set[int]) -> None:
        rows = torch.tensor(sorted(ids))
        self.table.weight[rows] += torch.randn(len(rows), _DIM, generator=self.generator)
        for state in self.table.states.values():
            state[rows] += 1 + torch.rand(state[rows].shape, generator=self.generator)
        self.dirty[rows] = True

    @rule()
    def full(self) -> None:
        self._save("full", torch.ones(_ROWS, dtype=torch.bool), None)

    @precondition(lambda self: self._newest())
    @rule()
    def delta(self) -> None:
        self._save("delta", self.dirty.clone(), None)

    @precondition(lambda self: self._newest())
    @rule(ids=st.sets(st.integers(0, _ROWS - 1)))
    def priority(self, ids: set[int]) -> None:
        self._save(
            "priority",
            torch.zeros(_ROWS, dtype=torch.bool).index_fill_(0, torch.tensor(sorted(ids), dtype=torch.int64), True),
            None,
        )

    @precondition(lambda self: self._newest())
    @rule(kind=st.sampled_from(["full", "delta"]), at=st.floats(0, 1))
    def crash(self, kind: str, at: float) -> None:
        """The writer dies after a share of the bytes; its dirty bits return."""
        dirty = self.dirty.clone()
        self._save(kind, torch.ones(_ROWS, dtype=torch.bool) if kind == "full" else dirty, at)
        self.dirty = dirty

    @precondition(lambda self: self._newest())
    @rule(back=st.integers(0, 3))
    def roll_back(self, back: int) -> None:
        """Everybody returns to an older save; what was saved since is hidden."""
        visible = [saved for saved in self.saves if saved.visible]
        to = visible[max(0, len(visible) - 1 - back)]
        self.timeline = CheckpointStore(str(self.directory), run="r").open_timeline(to.save_id)
        for saved in visible[visible.index(to) + 1 :]:
            saved.visible = False
        self.table.weight.copy_(to.after.weight)
        for name, state in self.table.states.items():
            state.copy_(to.after.states[name])
        self.dirty.fill_(False)

    @precondition(lambda self: self._newest())
    @rule(count=st.sampled_from([1, 2, 3, 6]), columns=st.booleans())
    def reshard(self, count: int, columns: bool) -> None:
        """Other shards take over what the last save has: partial recovery of everything at once."""
        newest = self._newest()
        assert newest is not None
        by_columns = columns and self.table.spec.optimizer != "exact_row_wise_adagrad"
        self.pieces = column_wise(self.table, count) if by_columns else row_wise(self.table, count)
        self.table.weight.copy_(newest.after.weight)
        for name, state in self.table.states.items():
            state.copy_(newest.after.states[name])
        self.dirty.fill_(False)

    @precondition(lambda self: self._newest())
    @rule(kind=st.sampled_from(["full", "delta"]), shard=st.integers(0, 5))
    def commit_after_a_death(self, kind: str, shard: int) -> None:
        """A shard dies after its part of a save; its successor restores what was there before; the save is completed.

        The successor cannot know what the save has of its rows, so it calls all of them changed.
        """
        before = self._newest()
        assert before is not None
        self._save(kind, torch.ones(_ROWS, dtype=torch.bool) if kind == "full" else self.dirty.clone(), None)
        piece = self.pieces[shard % len(self.pieces)]
        rows, columns = slice(piece.row_start, piece.row_end), slice(piece.col_start, piece.col_end)
        self.table.weight[rows, columns] = before.after.weight[rows, columns]
        for name, state in self.table.states.items():
            part = (rows, columns) if state.dim() == 2 else rows
            state[part] = before.after.states[name][part]
        self.dirty[rows] = True

    # -- what must hold

    @invariant()
    def every_row_is_the_newest_visible_version(self) -> None:
        if not hasattr(self, "saves"):
            return
        store = CheckpointStore(str(self.directory), run="r")
        newest = self._newest()
        into = [self.table.room(piece) for piece in self.pieces]
        if newest is None:
            try:
                restore_newest(store, into)
            except SaveNotFound:
                return
            raise AssertionError("restored from nothing")
        report = restore_newest(store, into)
        assert report.save_ids[-1] == newest.save_id
        for rows in into:
            Table("t", self.table.spec, newest.after.weight, newest.after.states).assert_equal(rows)
        if all(piece.dim == _DIM for piece in self.pieces):
            found = {save_id: count for save_id, count in report.rows_by_save.items() if count}
            assert found == {save_id: newest.after.sources.count(save_id) for save_id in set(newest.after.sources)}

    # -- parts

    def _newest(self) -> _Saved | None:
        return (
            next((saved for saved in reversed(self.saves) if saved.visible), None) if hasattr(self, "saves") else None
        )

    def _save(self, kind: str, chosen: Tensor, crash_at: float | None) -> None:
        self.sequence += 1
        save_id = f"{self.timeline:04d}-{self.sequence:08d}-{kind}"
        before = None if kind == "full" else self._newest()
        self._write(save_id, kind, chosen, before.save_id if before else None)
        if crash_at is not None:
            _cut_off(self.directory / "saves" / save_id, crash_at)
            return
        self.dirty &= ~chosen
        old = before.after if before else None
        weight = self.table.weight.clone()
        states = {name: state.clone() for name, state in self.table.states.items()}
        sources = [save_id] * _ROWS
        if old is not None:
            weight[~chosen] = old.weight[~chosen]
            for name, state in states.items():
                state[~chosen] = old.states[name][~chosen]
            sources = [save_id if new else was for new, was in zip(chosen.tolist(), old.sources, strict=True)]
        self.saves.append(
            _Saved(save_id, self.timeline, _Version(weight, states, sources), before.save_id if before else None)
        )

    def _write(self, save_id: str, kind: str, chosen: Tensor, parent: str | None) -> None:
        shards = [self._shard(piece, chosen, kind == "full") for piece in self.pieces]
        specs = {"t": self.table.spec}
        write_save(self.directory, save_id, specs, shards, parent=parent, samples=self.sequence)

    def _shard(self, piece: Piece, chosen: Tensor, whole: bool) -> list[Rows]:
        """Two chunks, each with its own cut."""
        middle = (piece.row_start + piece.row_end) // 2
        chunks = []
        for start, end in ((piece.row_start, middle), (middle, piece.row_end)):
            if start == end:
                continue
            part = Piece(piece.table, start, end, piece.col_start, piece.col_end)
            ids = None if whole else start + torch.nonzero(chosen[start:end]).flatten()
            chunks.append(self.table.cut(part, ids, first_cut(self.sequence) + len(chunks)))
        return chunks


class ServiceHistory(RunHistory):
    """The same, saved by the service's own shards, consistent or in chunks of a row or two."""

    writer = small_writer()

    def _write(self, save_id: str, kind: str, chosen: Tensor, parent: str | None) -> None:
        store = CheckpointStore(str(self.directory), run="r")
        ticket = store.begin(
            kind,  # type: ignore[arg-type]
            timeline=self.timeline,
            samples=self.sequence,
            consistent=self.sequence % 3 == 0,
            tables={"t": self.table.spec},
            parent=parent,
        )
        assert ticket.save_id == save_id
        files = []
        for index, piece in enumerate(self.pieces):
            rows = self.table.cut(piece)
            live = PieceRows(
                piece, rows.weight.contiguous(), {n: state.contiguous() for n, state in rows.states.items()}
            )
            ids = None if kind == "full" else torch.nonzero(chosen[piece.row_start : piece.row_end]).flatten()
            save = ShardSave(ticket, index, [live], {0: ids}, "fp32", self.writer, chunk_bytes=64)
            files += save.finish()
        store.commit(ticket, files)


def _cut_off(directory: Path, share: float) -> None:
    """Keep only the first bytes of what was written, in the order in which it was: shards, then the manifest.

    At least two bytes are lost: the last one is a line end, without which nothing is missing.
    """
    files = sorted(directory.iterdir(), key=lambda path: (path.name == "manifest.json", path.name))
    left = int(share * (sum(path.stat().st_size for path in files) - 2))
    for path in files:
        size = path.stat().st_size
        if left <= 0:
            path.unlink()
        elif left < size:
            path.write_bytes(path.read_bytes()[:left])
        left -= size


def _effort(examples: int) -> settings:
    checks = [HealthCheck.too_slow]
    return settings(max_examples=examples, stateful_step_count=14, deadline=None, suppress_health_check=checks)


TestRunHistory = RunHistory.TestCase
TestRunHistory.settings = _effort(80)
TestServiceHistory = ServiceHistory.TestCase
TestServiceHistory.settings = _effort(25)  # which waits for the disk at every file
