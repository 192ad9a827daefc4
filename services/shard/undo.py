"""Undo log: what a push is about to overwrite, so that a death in its middle can be taken back, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from checkpoint.piece import Piece
from services.memory.header import ArraySpec


class UndoLog:
    """Old rows and optimizer state of the one push under way, in memory that outlives the process.

    A push re-sent after the rows were put back gives what it would have given without the death. Ids may repeat: all
    their copies are from before the push, so the order in which they are put back does not matter.
    """

    def __init__(self, pieces: Sequence[Piece], optimizer: str, arrays: Mapping[str, Tensor]) -> None:
        """``arrays``: ``weights``, ``momentum1`` unless SGD, and those of ``specs``; all 1-D."""
        dims = [piece.dim for piece in pieces]
        widths = {"weights": dims}
        if optimizer != "exact_sgd":
            widths["momentum1"] = dims if optimizer == "exact_adagrad" else [1] * len(dims)
        rows = [piece.rows for piece in pieces]
        self._logs = [_ArrayLog(arrays[name], arrays[f"undo_{name}"], rows, own) for name, own in widths.items()]
        self._first_rows = torch.tensor([0, *accumulate(rows)][:-1], dtype=torch.int64)
        self._uniform = len(set(dims)) == 1

    @staticmethod
    def specs(optimizer: str, weights_type: str, numel: int) -> dict[str, ArraySpec]:
        """Arrays that a shard's memory needs for pushes of up to ``numel`` weights; untouched pages cost nothing."""
        specs = {"undo_weights": ArraySpec(weights_type, numel)}
        if optimizer != "exact_sgd":
            specs["undo_momentum1"] = ArraySpec("float32", numel)
        return specs

    def save(self, ids: Tensor, starts: Sequence[int]) -> bool:
        """Copy the rows of ``ids`` (L piece-local ids); False, and nothing copied, when they do not fit.

        Args:
            ids: L.
            starts: T+1, where the ids of each piece begin.
        """
        if not all(log.fits(starts) for log in self._logs):
            return False
        if self._uniform:  # one native call an array instead of one a piece
            counts = torch.tensor(starts).diff()
            rows = torch.repeat_interleave(self._first_rows, counts, output_size=ids.numel()).add_(ids)
            for log in self._logs:
                log.save_rows(rows)
        else:
            for log in self._logs:
                log.save(ids, starts)
        return True

    def put_back(self, ids: Tensor, starts: Sequence[int]) -> None:
        """Undo: write every saved row back to its place."""
        for log in self._logs:
            log.put_back(ids, starts)


class _ArrayLog:
    """The log of one flat array, whose piece i has ``widths[i]`` values a row."""

    def __init__(self, live: Tensor, log: Tensor, rows: Sequence[int], widths: Sequence[int]) -> None:
        self._live, self._log, self._widths = live, log, tuple(widths)
        ends = [0, *accumulate(count * width for count, width in zip(rows, widths, strict=True))]
        self._parts = [
            live[start:end].view(-1, width) for start, end, width in zip(ends, ends[1:], widths, strict=False)
        ]

    def fits(self, starts: Sequence[int]) -> bool:
        needed = sum((end - start) * width for width, start, end in zip(self._widths, starts, starts[1:], strict=False))
        return needed <= self._log.numel()

    def save_rows(self, rows: Tensor) -> None:
        """``rows`` count over all pieces, which have one width."""
        width = self._widths[0]
        live, log = self._live, self._log[: rows.numel() * width]
        if width > 1:  # three times the time for rows of one value
            live, log = live.view(-1, width), log.view(-1, width)
        torch.index_select(live, 0, rows, out=log)

    def save(self, ids: Tensor, starts: Sequence[int]) -> None:
        for part, own, log in self._slices(ids, starts):
            torch.index_select(part, 0, own, out=log)

    def put_back(self, ids: Tensor, starts: Sequence[int]) -> None:
        for part, own, log in self._slices(ids, starts):
            part.index_copy_(0, own, log)

    def _slices(self, ids: Tensor, starts: Sequence[int]) -> list[tuple[Tensor, Tensor, Tensor]]:
        slices, at = [], 0
        for part, width, start, end in zip(self._parts, self._widths, starts, starts[1:], strict=False):
            numel = (end - start) * width
            slices.append((part, ids[start:end], self._log[at : at + numel].view(-1, width)))
            at += numel
        return slices
