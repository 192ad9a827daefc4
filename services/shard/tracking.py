"""What a shard knows of its rows since they were saved: priorities, accesses, and which changed. In keeper memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from checkpoint.checkpoint_config import Strategy
from checkpoint.manifest import SaveKind
from checkpoint.piece import Piece
from checkpoint.piece_rows import PieceRows
from checkpoint.priority.adagrad import AdagradTracker
from checkpoint.priority.dirty import DirtyRows
from checkpoint.priority.mfu import MfuTracker
from checkpoint.priority.none import NoTracker
from checkpoint.priority.scar import ScarTracker
from checkpoint.priority.ssu import SsuTracker
from checkpoint.priority.tracker import PriorityTracker, Rows, TensorSpec, Watched
from services.memory.header import ArraySpec

_METER_EVERY = 64
"""One push in so many is counted where accesses are only metered, for the effective PLS: 0.3 % of a shard's time."""


@dataclass(frozen=True, slots=True)
class TrackingSpec:
    """Which tracker a shard keeps.

    ``tables``: those with priorities. ``deltas``: whether changed rows are marked, for delta saves.
    """

    strategy: Strategy = "partial_vanilla"
    tables: tuple[str, ...] = ()
    priority_fraction: float = 0.125
    mfu_every: int = 6
    ssu_every: int = 4
    deltas: bool = False


class Tracking:
    """A priority tracker, an access meter and marks of changed rows, together."""

    def __init__(self, spec: TrackingSpec, rows: Sequence[PieceRows], arrays: Mapping[str, Tensor]) -> None:
        """``arrays``: those of ``specs``; zeros mean that nothing was seen since the rows were saved."""
        pieces = [piece.piece for piece in rows]
        self._spec, self._rows = spec, [piece.rows for piece in pieces]
        watched = Watched.of(pieces, spec.tables)
        state = {name: arrays.get(name, torch.empty(0)) for name in self.specs(spec, pieces, "float32")}
        mfu = spec.strategy == "cpr_mfu"
        counters = state["access_counters"] if watched.rows else torch.empty(0, dtype=torch.int32)
        self._meter = MfuTracker(watched, {"access_counters": counters}, every=spec.mfu_every if mfu else _METER_EVERY)
        self._tracker = self._meter if mfu else _tracker(spec, watched, state, rows)
        self._observers: list[PriorityTracker | DirtyRows] = [self._meter]
        if spec.strategy == "cpr_ssu":
            self._observers.append(self._tracker)
        everything = Watched.of(pieces, [piece.table for piece in pieces])
        self._dirty = DirtyRows(everything, state) if spec.deltas else None
        if self._dirty is not None:
            self._observers.append(self._dirty)
        self._pending = arrays["pending_accesses"].numpy()
        self._uncovered: dict[int, int] = {}
        self._taken = 0  # by the save under way
        self._cut = False  # it is consistent
        self.undo_bytes = 0
        """What it takes to undo the save under way; without the rows that SCAR keeps, as many again as were saved."""

    @staticmethod
    def specs(spec: TrackingSpec, pieces: Sequence[Piece], row_type: str) -> dict[str, ArraySpec]:
        """Arrays that a shard's memory needs; untouched pages take no memory."""
        watched = Watched.of(pieces, spec.tables)
        found: dict[str, TensorSpec] = MfuTracker.tensor_specs(watched)
        if spec.strategy == "cpr_ssu":
            found |= SsuTracker.tensor_specs(watched, spec.priority_fraction)
        elif spec.strategy == "cpr_scar":
            found |= ScarTracker.tensor_specs(watched, row_type)
        elif spec.strategy == "cpr_adagrad":
            found |= AdagradTracker.tensor_specs(watched)
        if spec.deltas:
            found |= DirtyRows.tensor_specs(Watched.of(pieces, [piece.table for piece in pieces]))
        arrays = {name: ArraySpec(*one) for name, one in found.items()}
        return {**arrays, "pending_accesses": ArraySpec("int64", len(pieces) or 1)}

    @property
    def pending_accesses(self) -> int:
        """Accesses to rows since each was saved; where a table has priorities, estimated from some of the pushes.

        A save counts once it is ``settle``d.
        """
        return int(np.maximum(self._pending, 0).sum()) + self._taken

    def settle(self) -> None:
        """The save under way is durable, or was given up and taken back."""
        self._taken = 0

    def start(self) -> None:
        """The rows as they are now count as saved: they are new, or were restored."""
        if isinstance(self._tracker, AdagradTracker | ScarTracker):
            self._tracker.start()

    def reset(self) -> None:
        """As ``start``, when there was a past that no longer counts."""
        for tracker in (self._meter, self._tracker, self._dirty):
            for tensor in tracker.tensors().values() if tracker is not None else ():
                tensor.zero_()
        self._pending[:] = 0
        self.start()

    def distrust(self) -> None:
        """What was cleared for a save that its process did not finish is not known: every row may have changed."""
        for tensor in self._dirty.tensors().values() if self._dirty is not None else ():
            tensor.fill_(1)

    def observe(self, ids: Tensor, offsets: Tensor, starts: Sequence[int]) -> None:
        """A push is about to be applied: ids L, offsets T·B+1, ``starts`` T+1 of the ids of each piece."""
        self._pending[: len(starts) - 1] += np.diff(starts)
        for observer in self._observers:
            observer.observe(ids, offsets)

    def selections(self, kind: SaveKind) -> dict[int, Tensor | None]:
        """The rows to save, by piece; pieces without priorities whole."""
        self._uncovered = dict(enumerate(self._rows))
        self._taken, self._cut = 0, False
        self.undo_bytes = 0
        if kind == "priority":
            fraction = self._spec.priority_fraction
            return {
                index: self._tracker.select(index, max(1, int(fraction * self._rows[index])))
                for index in self._tracker.watched.indices
            }
        if kind == "delta":
            if self._dirty is None:
                raise ValueError("a delta save needs checkpoint.deltas above 0: changed rows are not marked")
            changed = {index: self._dirty.select(index) for index in self._dirty.watched.indices}
            self._uncovered = {index: ids.numel() for index, ids in changed.items()}  # all accesses were to these
            return {**changed}
        return {}

    def cut(self, selections: Mapping[int, Tensor | None]) -> Callable[[], None]:
        """A consistent save begins: what changes from now on is not in it. What is returned takes that back.

        Marks of changed rows must be exact, so they go now; priorities, which need not be, go when rows are copied.
        """
        self._cut = True
        undos = []
        if self._dirty is not None:
            for index, rows in enumerate(self._rows):
                chosen = selections.get(index)
                undos.append(self._dirty.clear(index, slice(0, rows) if chosen is None else chosen))
                self.undo_bytes += undos[-1].values.nbytes

        def undo() -> None:
            for one in undos:
                assert self._dirty is not None
                self._dirty.give_back(one)

        return undo

    def most_undo_bytes(self, selections: Mapping[int, Tensor | None]) -> int:
        """What it may take to undo a save of these rows, after ``cut``; of SCAR without the rows that it keeps.

        A counter that is taken back is one byte (``compact``), a path of Adagrad four.
        """
        row_bytes = 1 + (4 if isinstance(self._tracker, AdagradTracker) else 0)
        watched = self._meter.watched.indices
        chosen = {index: selections.get(index) for index in watched}
        rows = sum(self._rows[index] if ids is None else ids.numel() for index, ids in chosen.items())
        return self.undo_bytes + row_bytes * rows

    def on_copied(self, piece: int, rows: Rows) -> Callable[[], None]:
        """Rows of a piece were copied in this cut; what is returned takes that back."""
        before = int(self._pending[piece])
        count = rows.stop - rows.start if isinstance(rows, slice) else rows.numel()
        undos: list[Callable[[], None]] = []
        taken = None
        if piece in self._meter.watched.indices:
            taken = self._meter.clear(piece, rows)
            undos.append(partial(self._meter.give_back, taken))
            self.undo_bytes += taken.values.nbytes
            if self._tracker is not self._meter and piece in self._tracker.watched.indices:
                cleared = self._tracker.clear(piece, rows)
                undos.append(partial(self._tracker.give_back, cleared))
                self.undo_bytes += 0 if isinstance(self._tracker, ScarTracker) else cleared.values.nbytes
        if taken is not None and not isinstance(rows, slice):
            seen = int(taken.values.sum(dtype=torch.int64)) * self._meter.every
        else:  # rows in a row are as good as any others: their part of what is left
            seen = -(-before * count // max(1, self._uncovered[piece]))
        self._uncovered[piece] -= count
        if self._uncovered[piece] <= 0:  # all of it is saved: what an estimate left over goes
            seen = before
        self._pending[piece] = before - seen
        self._taken += seen
        if self._dirty is not None and not self._cut:
            marks = self._dirty.clear(piece, rows)
            undos.append(partial(self._dirty.give_back, marks))
            self.undo_bytes += marks.values.nbytes

        def undo() -> None:
            self._pending[piece] += seen
            for one in undos:
                one()

        return undo


def _tracker(
    spec: TrackingSpec, watched: Watched, state: Mapping[str, Tensor], rows: Sequence[PieceRows]
) -> PriorityTracker:
    if not watched.rows:
        return NoTracker(watched)
    if spec.strategy == "cpr_ssu":
        return SsuTracker(watched, state, spec.priority_fraction, every=spec.ssu_every)
    if spec.strategy == "cpr_scar":
        return ScarTracker(watched, state, [piece.weights for piece in rows])
    if spec.strategy == "cpr_adagrad":
        return AdagradTracker(watched, state, [piece.states["sum"] for piece in rows])
    return NoTracker(watched)
