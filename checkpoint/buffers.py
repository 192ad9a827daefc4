"""Warm, reused, page-aligned buffers between the copying of rows and their writing; their number bounds the memory."""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
from typing import Final

import numpy as np
from numpy.typing import NDArray

Buffer = NDArray[np.uint8]

PAGE_BYTES: Final = 4096
"""Alignment of address, offset and length that O_DIRECT asks for."""


class BufferPool:
    """``count`` buffers of ``buffer_bytes``, allocated and touched once: new memory is several times dearer.

    The one given back last is taken first, as it may still be in the cache. One thread takes, any
    gives.
    """

    def __init__(self, count: int = 8, buffer_bytes: int = 2 << 20) -> None:
        if count < 2 or buffer_bytes < PAGE_BYTES or buffer_bytes % PAGE_BYTES:
            raise ValueError(f"needs at least 2 buffers of a multiple of {PAGE_BYTES} bytes: {count} × {buffer_bytes}")
        self.count = count
        self.buffer_bytes = buffer_bytes
        self._condition = threading.Condition()
        memory = aligned_memory(count * buffer_bytes)
        memory.fill(0)
        self._free = list(memory.reshape(count, buffer_bytes))
        self._waiting = 0
        self.waited_s = 0.0
        """Seconds spent waiting for a buffer: what the storage was too slow for."""

    @property
    def bytes(self) -> int:
        """All memory held."""
        return self.count * self.buffer_bytes

    @property
    def free(self) -> int:
        """Buffers nobody holds."""
        return len(self._free)

    def take(self, timeout_s: float | None = None) -> Buffer | None:
        """A buffer; waits when all are out, ``None`` when that takes longer than ``timeout_s``."""
        with contextlib.suppress(IndexError):  # the usual case needs no lock, which could cost the GIL
            return self._free.pop()
        started = time.perf_counter()
        self.wait_free(1, timeout_s)
        self.waited_s += time.perf_counter() - started
        try:
            return self._free.pop()
        except IndexError:
            return None

    def wait_free(self, count: int, timeout_s: float | None = None) -> bool:
        """Wait until ``count`` buffers are free, without taking them; False when that takes longer."""
        if len(self._free) >= count:
            return True
        with self._condition:
            self._waiting += 1
            try:
                return self._condition.wait_for(lambda: len(self._free) >= count, timeout_s)
            finally:
                self._waiting -= 1

    def give(self, buffer: Buffer) -> None:
        """Give a buffer back."""
        self._free.append(buffer)
        if self._waiting:
            with self._condition:
                self._condition.notify_all()


def aligned_memory(size: int) -> Buffer:
    """Page-aligned private memory, in huge pages where the kernel has them; untouched pages cost nothing."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= 2 << 20:
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
