"""Keeps freed memory in the process: training allocates the same large tensors again and again."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_MMAP_THRESHOLD_BYTES = 32 << 20  # the largest that glibc accepts
_TOP_PAD_BYTES = 64 << 20  # a heap of glibc's per-thread arenas; a smaller pad gives empty ones back


def keep_freed_memory(kept_bytes: int) -> bool:
    """Ask glibc to keep up to ``kept_bytes`` of freed memory at an arena's end; False where there is no ``mallopt``.

    By default glibc returns such memory, and every page is faulted in again: a tenth of a trainer's time at B=8192.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = (
        (_M_TRIM_THRESHOLD, kept_bytes),
        (_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES),
        (_M_TOP_PAD, min(kept_bytes, _TOP_PAD_BYTES)),
    )
    return all(mallopt(parameter, value) for parameter, value in settings)
