"""Cuts a stream of blocks into batches of exact size and keeps account of the input rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from trainer.data.batch import Batch, RowSpan
from trainer.data.block import F32, I64, RawBlock
from trainer.data.encoder import FeatureEncoders
from trainer.data.layout import Ids, Part, part_of
from trainer.data.split import Lease, Purpose


@dataclass(frozen=True, slots=True)
class _Cursor:
    """Which input rows the surviving rows of a block stand for."""

    lease_id: int
    block: RawBlock

    def span(self, start: int, end: int) -> RowSpan:
        """Surviving rows ``[start, end)`` and the rejected ones before them; the last ones take all that is left."""
        first = self.block.line_start if start == 0 else self._after(start)
        last = self.block.line_end if end == self.block.rows else self._after(end)
        return RowSpan(self.lease_id, first, last, end - start)

    def rows(self, start: int, end: int) -> I64:
        """Input rows of the surviving rows ``[start, end)``."""
        index, first = self.block.row_index, self.block.line_start
        return np.arange(first + start, first + end, dtype=np.int64) if index is None else index[start:end]

    def _after(self, survivors: int) -> int:
        """One past the input row of the last of the first ``survivors`` rows."""
        index = self.block.row_index
        return self.block.line_start + survivors if index is None else int(index[survivors - 1]) + 1


class BatchAssembler:
    """Not thread-safe: each reader thread has its own.

    Batches span blocks and leases of one purpose. What lies inside a block is passed on as views; only batches across
    a seam are joined.
    """

    def __init__(self, encoders: FeatureEncoders, batch_size: int) -> None:
        """Batches have ``batch_size`` samples, flushed ones fewer."""
        self._encoders = encoders
        self._size = batch_size
        self._parts: list[Part] = []
        self._held_rows = 0
        self._spans: list[RowSpan] = []
        self._rows: list[I64] = []
        self._purpose: Purpose = "train"

    def add(self, lease: Lease, block: RawBlock) -> Iterator[Batch]:
        """The batches that become full with ``block``, the next block of ``lease``.

        Raises:
            DataError: an id beyond the table of a feature with ``encoding: identity``.
        """
        self._encoders.check(block, lease.split.path)
        if lease.purpose != self._purpose:
            yield from self.flush()
            self._purpose = lease.purpose
        part, cursor = part_of(block, self._encoders), _Cursor(lease.lease_id, block)
        at = 0
        if self._parts or block.rows == 0:
            at = min(self._size - self._held_rows, block.rows)
            self._hold(part, cursor, 0, at)
            if self._held_rows == self._size:
                yield from self.flush()
        whole = at + (block.rows - at) // self._size * self._size
        if whole > at:
            yield from self._whole(part, cursor, at, whole)
        if block.rows > whole:
            self._hold(part, cursor, whole, block.rows)

    def flush(self) -> Iterator[Batch]:
        """What is held, as one smaller batch; size 0 when only rejected rows are left to answer for."""
        if self._parts:
            first, *others = self._parts
            ids = first.joined(others)
            dense = np.concatenate([part.dense for part in self._parts]) if others else first.dense
            labels = np.concatenate([part.labels for part in self._parts]) if others else first.labels
            rows = np.concatenate(self._rows) if self._purpose == "predict" else None
            yield _batch(dense, labels, ids, tuple(self._spans), self._purpose, rows)
        self._parts, self._spans, self._rows, self._held_rows = [], [], [], 0

    def _whole(self, part: Part, cursor: _Cursor, start: int, end: int) -> Iterator[Batch]:
        """Batches that lie inside one block: views of it."""
        for ids in part.slice(start, end).batches(self._size):
            span = cursor.span(start, start + self._size)
            window = slice(start, start + self._size)
            rows = cursor.rows(start, start + self._size) if self._purpose == "predict" else None
            yield _batch(part.dense[window], part.labels[window], ids, (span,), self._purpose, rows)
            start += self._size

    def _hold(self, part: Part, cursor: _Cursor, start: int, end: int) -> None:
        span, rows = cursor.span(start, end), end - start
        if rows or not self._parts:
            self._parts.append(part.slice(start, end))
            if self._purpose == "predict":
                self._rows.append(cursor.rows(start, end))
        self._held_rows += rows
        last = self._spans[-1] if self._spans else None
        if last is not None and (last.lease_id, last.end) == (span.lease_id, span.start):
            self._spans[-1] = RowSpan(span.lease_id, last.start, span.end, last.rows + span.rows)
        elif span.end > span.start:
            self._spans.append(span)


def _batch(dense: F32, labels: F32, ids: Ids, spans: tuple[RowSpan, ...], purpose: Purpose, rows: I64 | None) -> Batch:
    return Batch(
        torch.from_numpy(dense),
        torch.from_numpy(labels),
        torch.from_numpy(ids.values),
        None if ids.lengths is None else torch.from_numpy(ids.lengths),
        spans,
        purpose,
        None if ids.weights is None else torch.from_numpy(ids.weights),
        None if rows is None else torch.from_numpy(rows),
    )
