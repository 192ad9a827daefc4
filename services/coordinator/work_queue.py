"""The queue of splits: what is leased to whom, what was committed, what comes back. Pure; not thread-safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, NamedTuple

from services.coordinator.position import OpenPart, Position, fingerprint
from services.state.work_records import LeasePart
from trainer.data.split import Lease, Purpose, Split
from trainer.ledger import Commit, Report

Range = tuple[int, int]

_LEASES_IN_DOUBT = 1_000_000
"""Numbers that are left out after a restart: the coordinator may have given some out that no record has."""


class AccountingError(RuntimeError):
    """A commit does not fit the lease it names: rows would be counted twice or not at all."""


@dataclass(slots=True)
class RowCounts:
    """Rows by outcome; each leased row ends in exactly one of them, once an epoch."""

    trained: int = 0
    skipped: int = 0
    rejected: int = 0
    evaluated: int = 0
    predicted: int = 0


class _Todo(NamedTuple):
    split: Split
    epoch: int
    ranges: tuple[Range, ...]
    requeued: bool = False
    ordinal: int = 0
    """Its place in the stage."""


@dataclass(slots=True)
class _Stage:
    """Splits that may be worked on together; the next stage starts when every row of this one is committed."""

    purpose: Purpose
    todo: deque[_Todo] = field(default_factory=deque)
    size: int = 0


@dataclass(slots=True)
class _Open:
    trainer_id: int
    purpose: Purpose
    epoch: int
    split: Split
    remaining: list[Range]
    ordinal: int
    seen: bool


class WorkQueue:
    """Leases splits of one stage after another: training (all epochs), with evaluations in between and at the end.

    Prediction comes last, so it sees the model that the last evaluation saw.
    """

    def __init__(
        self,
        train: Sequence[Split],
        evaluation: Sequence[Split],
        epochs: int,
        eval_every_samples: int | None,
        predict: Sequence[Split] = (),
    ) -> None:
        self.counts = RowCounts()
        self.stages_done = 0
        self.restarted = False
        self._before_stage = RowCounts()
        self._trained_by: dict[int, int] = {}
        self._open: dict[int, _Open] = {}
        self._next_lease = 0
        self._stages = deque(_stages(train, evaluation, epochs, eval_every_samples))
        if predict:
            number = 1 + sum(stage.purpose == "eval" for stage in self._stages)
            self._stages.append(_Stage("predict", deque(_whole(split, number) for split in predict)))
        for stage in self._stages:
            stage.size = len(stage.todo)
            stage.todo = deque(todo._replace(ordinal=ordinal) for ordinal, todo in enumerate(stage.todo))
        self._plan = fingerprint((todo.split, todo.epoch) for stage in self._stages for todo in stage.todo)

    @property
    def stage(self) -> tuple[Purpose, int] | None:
        """Purpose and epoch (evaluation round) of the work that is leased now; ``None`` when all is done."""
        if not self._stages:
            return None
        todo = self._stages[0].todo
        number = todo[0].epoch if todo else max(lease.epoch for lease in self._open.values())
        return self._stages[0].purpose, number

    @property
    def done(self) -> bool:
        """Every row of every stage is committed."""
        return not self._stages

    def position(self) -> Position:
        """Which rows are committed. An evaluation or prediction under way counts as not begun."""
        stage = self._stages[0] if self._stages else _Stage("train")
        parts: dict[int, OpenPart] = {}
        untouched = 0
        if stage.purpose == "train":
            for todo in stage.todo:
                parts[todo.ordinal] = OpenPart(ordinal=todo.ordinal, ranges=todo.ranges, seen=todo.requeued)
            for lease in self._open.values():
                parts[lease.ordinal] = OpenPart(ordinal=lease.ordinal, ranges=tuple(lease.remaining), seen=lease.seen)
            for todo in reversed(stage.todo):  # those nobody was given are the last ones, and need no mention
                if todo.requeued or todo.ordinal != stage.size - 1 - untouched or todo.ranges != (_rows(todo.split),):
                    break
                untouched += 1
                del parts[todo.ordinal]
        counts = self.counts if stage.purpose == "train" else self._before_stage
        return Position(
            plan=self._plan,
            stages_done=self.stages_done,
            untouched=untouched,
            open=tuple(parts[ordinal] for ordinal in sorted(parts)),
            counts=asdict(counts),
        )

    def go_to(self, position: Position) -> None:
        """Continue from ``position``, which a queue of the same splits gave; nothing may have been leased yet.

        Raises:
            AccountingError: it is of other splits: the data, ``train.epochs`` or how it is cut has changed.
        """
        if position.plan != self._plan:
            raise AccountingError(
                "the saved data position is of other splits: data.*, train.epochs, train.eval_every_samples or the "
                "files changed since; restore them, or begin a new run with another name="
            )
        while self.stages_done < position.stages_done:
            self._stages.popleft()
            self.stages_done += 1
        self.counts = RowCounts(**position.counts)
        self._before_stage = replace(self.counts)
        if self._stages and self._stages[0].purpose == "train":
            todo = self._stages[0].todo
            parts = {part.ordinal: part for part in position.open}
            first_whole = self._stages[0].size - position.untouched
            self._stages[0].todo = deque(
                one._replace(ranges=parts[one.ordinal].ranges, requeued=parts[one.ordinal].seen)
                if one.ordinal in parts
                else one
                for one in todo
                if one.ordinal in parts or one.ordinal >= first_whole
            )
            self._advance()

    def leases(self) -> tuple[tuple[LeasePart, ...], int, dict[int, int]]:
        """Open leases of a training stage, the next lease's number, and samples by trainer."""
        parts = tuple(
            LeasePart(
                lease_id=lease_id,
                trainer_id=lease.trainer_id,
                ordinal=lease.ordinal,
                remaining=tuple(lease.remaining),
                seen=lease.seen,
            )
            for lease_id, lease in self._open.items()
            if lease.purpose == "train"
        )
        return parts, self._next_lease, dict(self._trained_by)

    def reopen(self, leases: Iterable[LeasePart], next_lease_id: int, trained_by: Mapping[int, int]) -> None:
        """After ``go_to``: these splits are with trainers already."""
        self._trained_by = dict(trained_by)
        self._next_lease = next_lease_id + _LEASES_IN_DOUBT
        self.restarted = True
        if not self._stages:
            return
        todo = {one.ordinal: one for one in self._stages[0].todo}
        for lease in leases:
            taken = todo.pop(lease.ordinal)
            self._open[lease.lease_id] = _Open(
                lease.trainer_id, "train", taken.epoch, taken.split, list(lease.remaining), lease.ordinal, lease.seen
            )
        self._stages[0].todo = deque(one for one in self._stages[0].todo if one.ordinal in todo)

    def without_unknown(self, report: Report) -> Report:
        """A report less what is of leases that nobody has: of an evaluation that a restart set back."""
        if all(commit.lease_id in self._open for commit in report.commits):
            return report
        known = [commit for commit in report.commits if commit.lease_id in self._open]
        return Report(commits=known, bad_batches=report.bad_batches, loss=report.loss, first_pass=report.first_pass)

    def split_of(self, lease_id: int) -> Split:
        """What an open lease is of.

        Raises:
            AccountingError: it is not open.
        """
        if lease_id not in self._open:
            raise AccountingError(f"rows of lease {lease_id} are reported, which nobody has")
        return self._open[lease_id].split

    def trained_by_others(self, trainer_id: int) -> int:
        """Samples that were committed by others than this trainer's current incarnation, which counts its own."""
        return self.counts.trained - self._trained_by.get(trainer_id, 0)

    def lease(self, trainer_id: int) -> Lease | Literal["wait", "done"]:
        """Work for a trainer; ``wait`` while rows of the stage are still out with somebody."""
        if not self._stages:
            return "done"
        stage = self._stages[0]
        if not stage.todo:
            return "wait"
        todo = stage.todo.popleft()
        lease_id = self._next_lease
        self._next_lease += 1
        self._open[lease_id] = _Open(
            trainer_id, stage.purpose, todo.epoch, todo.split, list(todo.ranges), todo.ordinal, todo.requeued
        )
        return Lease(lease_id, todo.split, todo.epoch, stage.purpose, todo.ranges, todo.requeued)

    def commit(self, trainer_id: int, commits: Iterable[Commit]) -> None:
        """Account rows as done.

        Raises:
            AccountingError: the lease is not this trainer's, or rows were committed before.
        """
        for commit in commits:
            lease = self._open.get(commit.lease_id)
            if lease is None or lease.trainer_id != trainer_id:
                raise AccountingError(f"trainer {trainer_id} commits rows of lease {commit.lease_id}, which it lacks")
            lease.remaining = _without(lease.remaining, (commit.start, commit.end), lease.split.path)
            self._count(trainer_id, lease.purpose, commit)
            if not lease.remaining:
                del self._open[commit.lease_id]
        self._advance()

    def requeue(self, trainer_id: int) -> int:
        """A trainer died: its uncommitted rows go first in the queue again; returns how many."""
        rows = 0
        for lease_id in sorted((i for i, lease in self._open.items() if lease.trainer_id == trainer_id), reverse=True):
            lease = self._open.pop(lease_id)
            ranges = tuple(lease.remaining)
            self._stages[0].todo.appendleft(_Todo(lease.split, lease.epoch, ranges, True, lease.ordinal))
            rows += sum(end - start for start, end in lease.remaining)
        self._trained_by.pop(trainer_id, None)  # its successor counts from zero
        return rows

    def _count(self, trainer_id: int, purpose: Purpose, commit: Commit) -> None:
        counts = self.counts
        counts.rejected += commit.end - commit.start - commit.rows
        if purpose == "eval":
            counts.evaluated += commit.rows
        elif purpose == "predict":
            counts.predicted += commit.rows
        elif commit.skipped:
            counts.skipped += commit.rows
        else:
            counts.trained += commit.rows
            self._trained_by[trainer_id] = self._trained_by.get(trainer_id, 0) + commit.rows

    def _advance(self) -> None:
        while self._stages and not self._stages[0].todo and not self._open:
            self._stages.popleft()
            self.stages_done += 1
            self._before_stage = replace(self.counts)


def _stages(
    train: Sequence[Split], evaluation: Sequence[Split], epochs: int, eval_every_samples: int | None
) -> list[_Stage]:
    stages: list[_Stage] = []
    current, rows, rounds = _Stage("train"), 0, 0

    def close() -> None:
        nonlocal current, rows, rounds
        if current.todo:
            stages.append(current)
        if evaluation:
            rounds += 1
            stages.append(_Stage("eval", deque(_whole(split, rounds) for split in evaluation)))
        current, rows = _Stage("train"), 0

    for epoch in range(1, epochs + 1):
        for split in train:
            if eval_every_samples is not None and evaluation and rows >= eval_every_samples:
                close()
            current.todo.append(_whole(split, epoch))
            rows += split.rows
    close()
    return stages


def _whole(split: Split, epoch: int) -> _Todo:
    return _Todo(split, epoch, (_rows(split),))


def _rows(split: Split) -> Range:
    return split.row_start, split.row_end


def _without(ranges: list[Range], taken: Range, path: str) -> list[Range]:
    """``ranges`` less ``taken``, which must lie inside one of them."""
    start, end = taken
    for position, (low, high) in enumerate(ranges):
        if low <= start < end <= high:
            rest = [part for part in ((low, start), (end, high)) if part[0] < part[1]]
            return ranges[:position] + rest + ranges[position + 1 :]
    raise AccountingError(f"{path}: rows [{start}, {end}) were committed before or never leased (open: {ranges})")
