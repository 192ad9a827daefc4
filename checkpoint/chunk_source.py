"""ChunkSource: produces a chunk's tensors from live rows, in whatever form they are stored."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from checkpoint.encodings import encode
from checkpoint.overlay import Overlay
from checkpoint.piece_rows import PieceRows
from checkpoint.save_plan import Chunk

_BLOCK_BYTES: Final = 128 << 10
"""Rows gathered and encoded at once: they stay in the cache in between."""

_EXACT: Final = {"fp32": torch.float32, "fp16": torch.float16}


class ChunkSource:
    """Rows of one chunk.

    Args:
        chunk: what to copy.
        rows: live tensors of its piece.
        selected: all selected local ids of the piece, where the chunk is sparse.
        overlay: rows kept since the consistent cut, if it is one.
    """

    def __init__(self, chunk: Chunk, rows: PieceRows, selected: Tensor | None, overlay: Overlay | None) -> None:
        self._chunk, self._rows, self._overlay = chunk, rows, overlay
        self._selected = selected[chunk.start : chunk.end] if selected is not None else None
        self._kept = overlay.find(chunk.start, chunk.end) if overlay is not None else None

    def ids(self) -> Tensor:
        """Local ids of the chunk's rows."""
        return torch.arange(self._chunk.start, self._chunk.end) if self._selected is None else self._selected

    def produce(self, name: str, begin: int, end: int, out: Tensor) -> None:
        """Fill ``out`` with rows ``[begin, end)`` of the chunk's tensor ``name``."""
        if name == "ids":
            torch.add(self.ids()[begin:end], self._rows.piece.row_start, out=out)
            return
        is_weight = name == "weight"
        live = self._rows.weights if is_weight else self._rows.states[name.removeprefix("state.")]
        encoding = self._chunk.encoding
        if not is_weight or _EXACT.get(encoding) == live.dtype:
            self._read(live, begin, end, out)
            self._patch(name, begin, end, out)
            return
        rows = max(1, _BLOCK_BYTES // (live.shape[1] * live.itemsize))
        for start in range(begin, end, rows):
            stop = min(start + rows, end)
            scratch = torch.empty(stop - start, live.shape[1], dtype=live.dtype)
            self._read(live, start, stop, scratch)
            self._patch(name, start, stop, scratch)
            encode(scratch, encoding, out[start - begin : stop - begin])

    def _read(self, live: Tensor, begin: int, end: int, out: Tensor) -> None:
        if self._selected is not None:
            torch.index_select(live, 0, self._selected[begin:end], out=out)
        else:
            out.copy_(live[self._chunk.start + begin : self._chunk.start + end])

    def _patch(self, name: str, begin: int, end: int, out: Tensor) -> None:
        """Put the rows back that were kept."""
        if self._kept is None or self._overlay is None:
            return
        positions, slots = self._kept
        low, high = torch.searchsorted(positions, torch.tensor((begin, end))).tolist()
        if low < high:
            out[positions[low:high] - begin] = self._overlay.read(name, slots[low:high])
