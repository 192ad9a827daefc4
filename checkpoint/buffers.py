"""Warm, reused, page-aligned buffers between the copying of rows and their writing; their number bounds the memory."""

from __future__ import annotations

import mmap
import threading
import time
from typing import Final

import torch
from torch import Tensor

PAGE_BYTES: Final = 4096
"""Alignment of address, offset and length that O_DIRECT asks for."""


class BufferPool:
    """``count`` buffers of ``buffer_bytes``, allocated and touched once: new memory is several times dearer.

    The one given back last is taken first, as it may still be in the cache. Thread-safe.
    """

    def __init__(self, count: int = 8, buffer_bytes: int = 2 << 20) -> None:
        if count < 2 or buffer_bytes < PAGE_BYTES or buffer_bytes % PAGE_BYTES:
            raise ValueError(f"needs at least 2 buffers of a multiple of {PAGE_BYTES} bytes: {count} × {buffer_bytes}")
        self.count = count
        self.buffer_bytes = buffer_bytes
        self._condition = threading.Condition()
        self._free = [aligned_memory(buffer_bytes).zero_() for _ in range(count)]
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

    def take(self, timeout_s: float | None = None) -> Tensor | None:
        """A buffer (uint8); waits when all are out, ``None`` when that takes longer than ``timeout_s``."""
        with self._condition:
            if not self._free:
                started = time.perf_counter()
                self._condition.wait_for(lambda: self._free, timeout_s)
                self.waited_s += time.perf_counter() - started
            return self._free.pop() if self._free else None

    def give(self, buffer: Tensor) -> None:
        """Give a buffer back."""
        with self._condition:
            self._free.append(buffer)
            self._condition.notify()


def aligned_memory(size: int) -> Tensor:
    """Page-aligned private memory (uint8), in huge pages where the kernel has them; untouched pages cost nothing."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= 2 << 20:
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
