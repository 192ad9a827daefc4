"""The rows that Adagrad has moved most since they were saved, read from its own state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from checkpoint.priority.threshold import largest
from checkpoint.priority.tracker import Rows, TensorSpec, Undo, Watched, bytes_of

_SAVED = "saved_path"
_CHUNK_NUMEL = 1 << 15


class AdagradTracker:
    """Keeps √sum of every watched row as it was last saved: 4 bytes a row, and no cost per access.

    With each access Adagrad's sum s grows by g² and the row moves by η·g/√s. As ds/√s = 2·d√s, gradients g that agree
    have moved it by 2η/g·(√s_now - √s_saved). Counting accesses (MFU) is the same thing for SGD, whose steps do not
    shrink; under Adagrad the rows accessed most come to move least, and MFU can do worse than no priority
    (`benchmarks.priority`). This is ours, not the paper's.
    """

    def __init__(self, watched: Watched, tensors: Mapping[str, Tensor], sums: Sequence[Tensor]) -> None:
        """``sums``: the optimizer state of all pieces of the shard: rows (row-wise Adagrad) or rows×dim (Adagrad)."""
        self.watched = watched
        self._sums = sums
        self._flat = tensors[_SAVED]
        self._saved = watched.split(self._flat, {index: watched.pieces[index].rows for index in watched.indices})

    @staticmethod
    def tensor_specs(watched: Watched) -> dict[str, TensorSpec]:
        """The arrays to allocate."""
        return {_SAVED: TensorSpec("float32", watched.rows)}

    def start(self) -> None:
        """The rows as they are now count as saved: after they were restored. New rows need no start, their sum is 0."""
        for index, saved in self._saved.items():
            for part in self._parts(index):
                saved[part] = self._path(index, part)

    def observe(self, ids: Tensor, offsets: Tensor) -> None:
        """Nothing: the optimizer keeps count."""

    def select(self, piece: int, count: int) -> Tensor:
        """The ``count`` rows that moved most; rows that did not move are never taken."""
        saved = self._saved[piece]
        moved = torch.empty_like(saved)
        for part in self._parts(piece):
            torch.sub(self._path(piece, part), saved[part], out=moved[part])
        # Floats that are not negative order like their bits; no sum ever shrinks.
        return largest(moved.view(torch.int32), count)

    def clear(self, piece: int, rows: Rows) -> Undo:
        """These rows are saved as they are now."""
        saved = self._saved[piece]
        before = saved[rows].clone()
        ids = range(saved.numel())[rows] if isinstance(rows, slice) else rows
        for start in range(0, len(ids), self._step(piece)):
            part = ids[start : start + self._step(piece)]
            some = slice(part.start, part.stop) if isinstance(part, range) else part
            saved[some] = self._path(piece, some)
        return Undo(piece, rows, before)

    def give_back(self, undo: Undo) -> None:
        """They are not: the versions before count again."""
        self._saved[undo.piece][undo.rows] = undo.values

    def tensors(self) -> dict[str, Tensor]:
        """√sum at the last save, of all watched pieces, end to end."""
        return {_SAVED: self._flat}

    @property
    def overhead_bytes(self) -> int:
        """4 bytes a watched row."""
        return bytes_of(self.tensors())

    def _path(self, piece: int, rows: Rows) -> Tensor:
        roots = self._sums[piece][rows].sqrt()
        return roots if roots.dim() == 1 else roots.sum(1)

    def _parts(self, piece: int) -> list[slice]:
        step = self._step(piece)
        return [slice(start, start + step) for start in range(0, self._sums[piece].shape[0], step)]

    def _step(self, piece: int) -> int:
        """Rows to compute at once."""
        sums = self._sums[piece]
        return max(1, _CHUNK_NUMEL * sums.shape[0] // sums.numel())
