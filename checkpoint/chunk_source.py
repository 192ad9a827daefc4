"""ChunkSource: produces a chunk's tensors from live rows, in whatever form they are stored.

NumPy and memoryviews instead of torch on the way: a torch call gives up the GIL and has to get it back, and in a
process that trains at the same time that costs more than the copy.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from checkpoint.encodings import encode
from checkpoint.overlay import Overlay
from checkpoint.piece_rows import PieceRows
from checkpoint.save_plan import Chunk

Array = NDArray[Any]

_BLOCK_BYTES: Final = 512 << 10
"""Rows gathered, checked and encoded at once: they stay in the cache in between."""

_EXACT: Final = {"fp32": torch.float32, "fp16": torch.float16}


class LiveRows:
    """The live tensors of a piece by their stored names, as arrays and as bytes."""

    def __init__(self, rows: PieceRows) -> None:
        tensors = {"weight": rows.weights, **{f"state.{name}": state for name, state in rows.states.items()}}
        self.row_start = rows.piece.row_start
        self.dtype = rows.weights.dtype
        self.arrays: dict[str, Array] = {name: tensor.numpy() for name, tensor in tensors.items()}
        self.bytes = {name: array.reshape(-1).view(np.uint8).data for name, array in self.arrays.items()}
        self.row_bytes = {name: array[:1].nbytes for name, array in self.arrays.items()}


class ChunkSource:
    """Rows of one chunk.

    Args:
        chunk: what to copy.
        live: tensors of its piece.
        selected: all selected local ids of the piece, where the chunk is sparse.
        overlay: rows kept since the consistent cut, if it is one.
    """

    def __init__(
        self, chunk: Chunk, live: LiveRows, selected: NDArray[np.int64] | None, overlay: Overlay | None
    ) -> None:
        self._chunk, self._rows = chunk, live
        self._selected = selected[chunk.start : chunk.end] if selected is not None else None
        self._overlay = overlay
        self._kept = overlay.find(chunk.start, chunk.end) if overlay is not None else None
        self._exact = _EXACT.get(chunk.encoding) == live.dtype

    def rows(self) -> Tensor | slice:
        """Local ids of the chunk's rows: a range where they are one."""
        if self._selected is None:
            return slice(self._chunk.start, self._chunk.end)
        return torch.from_numpy(self._selected)

    def as_it_is(self, name: str) -> memoryview | None:
        """The bytes of tensor ``name`` where they lie, if they can be stored like that."""
        if self._selected is not None or self._kept is not None or (name == "weight" and not self._exact):
            return None
        row_bytes = self._rows.row_bytes[name]
        return self._rows.bytes[name][self._chunk.start * row_bytes : self._chunk.end * row_bytes]

    def produce(self, name: str, begin: int, end: int, out: Array) -> None:
        """Fill ``out`` with rows ``[begin, end)`` of the chunk's tensor ``name``."""
        if name == "ids":
            assert self._selected is not None
            np.add(self._selected[begin:end], self._rows.row_start, out=out)
            return
        live = self._rows.arrays[name]
        if name != "weight" or self._exact:
            self._read(name, live, begin, end, out)
            return
        rows = max(1, _BLOCK_BYTES // live[:1].nbytes)
        scratch = None if self._is_plain else np.empty((min(rows, end - begin), live.shape[1]), live.dtype)
        for start in range(begin, end, rows):
            stop = min(start + rows, end)
            if scratch is None:
                block = live[self._chunk.start + start : self._chunk.start + stop]
            else:
                block = scratch[: stop - start]
                self._read(name, live, start, stop, block)
            encode(torch.from_numpy(block), self._chunk.encoding, torch.from_numpy(out[start - begin : stop - begin]))

    @property
    def _is_plain(self) -> bool:
        """Whether the chunk's rows are live rows, one behind the other."""
        return self._selected is None and self._kept is None

    def _read(self, name: str, live: Array, begin: int, end: int, out: Array) -> None:
        """Live rows, those that were kept as they were."""
        if self._selected is not None:
            np.take(live, self._selected[begin:end], axis=0, out=out, mode="clip")  # "raise" would copy once more
        else:
            out[...] = live[self._chunk.start + begin : self._chunk.start + end]
        if self._kept is None or self._overlay is None:
            return
        positions, slots = self._kept
        low, high = np.searchsorted(positions, (begin, end))
        if low < high:
            out[positions[low:high] - begin] = self._overlay.read(name, slots[low:high])
