"""Packer: lays the tensors of a file one behind the other into the writer's buffers, copying each byte once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from checkpoint.buffers import Buffer
from checkpoint.errors import StorageSlow
from checkpoint.save_plan import NUMPY, StoredTensor
from checkpoint.writer import FileJob, ShardWriter

_SCRATCH_BYTES: Final = 128 << 10

Produce = Callable[[int, int, NDArray[Any]], None]
"""``produce(begin, end, out)`` fills ``out`` with rows ``[begin, end)`` of a stored tensor."""


class Packer:
    """Fills one file.

    Args:
        writer: takes the full buffers.
        job: the file.
        total_bytes: of the file; the buffer that completes it is handed over as the last.
        patience_s: longest wait for a buffer.
    """

    def __init__(self, writer: ShardWriter, job: FileJob, total_bytes: int, patience_s: float) -> None:
        self._writer, self._job = writer, job
        self._left = total_bytes
        self._patience_s = patience_s
        self._buffer: Buffer | None = None
        self._filled = 0

    def has_buffers(self, size: int) -> bool:
        """Whether ``size`` bytes can be appended without waiting, or as nearly so as the pool is large enough for."""
        pool, holds = self._writer.pool, self._buffer is not None
        room = pool.buffer_bytes - self._filled if holds else 0
        needed = -(-(size - room) // pool.buffer_bytes)
        return pool.free >= min(needed, pool.count - holds)

    def append(self, data: memoryview) -> None:
        """Append bytes. The GIL is held: a few megabytes are copied sooner than it could be got back."""
        done = 0
        while done < len(data):
            count = min(self._room(), len(data) - done)
            self._view(count).data[:] = data[done : done + count]
            self._advance(count)
            done += count

    def append_rows(self, tensor: StoredTensor, produce: Produce) -> None:
        """Append a tensor whose rows are produced right where they will be written from.

        Only a row that lies across two buffers, or at an odd address, goes through a scratch.
        """
        rows, row_shape = tensor.shape[0], tensor.shape[1:]
        row_bytes, dtype = tensor.nbytes // rows, NUMPY[tensor.dtype]
        done = 0
        while done < rows:
            whole = min(rows - done, self._room() // row_bytes)
            aligned = self._filled % tensor.dtype.itemsize == 0
            if whole and aligned:
                out = self._view(whole * row_bytes).view(dtype).reshape(whole, *row_shape)
                produce(done, done + whole, out)
                self._advance(whole * row_bytes)
            else:
                whole = 1 if aligned else min(rows - done, max(1, _SCRATCH_BYTES // row_bytes))
                scratch = np.empty((whole, *row_shape), dtype)
                produce(done, done + whole, scratch)
                self.append(scratch.reshape(-1).view(np.uint8).data)
            done += whole

    def release(self) -> None:
        """Give back the buffer in hand (the save failed)."""
        if self._buffer is not None:
            self._writer.pool.give(self._buffer)
            self._buffer = None

    def _room(self) -> int:
        """Bytes left in the buffer in hand, after taking one if there is none."""
        pool = self._writer.pool
        if self._buffer is None:
            self._buffer = pool.take(self._patience_s)
            if self._buffer is None:
                raise StorageSlow(
                    f"waited {self._patience_s:g} s for one of {pool.count} buffers of {pool.buffer_bytes:,} bytes; "
                    f"{self._job.bytes_written:,} bytes of this file are written: the storage is slower than that. "
                    "Save less often (checkpoint.interval_s), or to faster storage (storage_path)"
                )
            self._filled = 0
        return pool.buffer_bytes - self._filled

    def _view(self, count: int) -> Buffer:
        assert self._buffer is not None
        return self._buffer[self._filled : self._filled + count]

    def _advance(self, count: int) -> None:
        assert self._buffer is not None
        self._filled += count
        self._left -= count
        if self._filled == self._buffer.size or not self._left:
            buffer, self._buffer = self._buffer, None
            self._writer.submit(self._job, buffer, self._filled, last=not self._left)
