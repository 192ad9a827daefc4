"""The keeper's memory that this process maps, with a descriptor of each: what a new keeper is given when one died."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import weakref

from services.memory.descriptors import request

_lock = threading.Lock()
_held: dict[int, tuple[str, int]] = {}  # id of the mapping → name, descriptor


def hold(name: str, memory: mmap.mmap, fd: int) -> None:
    """Keep ``fd`` as long as ``memory`` is mapped."""
    key = id(memory)
    with _lock:
        _held[key] = (name, fd)
    weakref.finalize(memory, _let_go, key)


def hand_over(keeper: str) -> int:
    """Give a new keeper every region this process maps; returns how many. One that it was given already stays.

    Raises:
        KeeperError: it does not answer, or holds other memory of that name.
    """
    with _lock:
        held = [(name, os.dup(fd)) for name, fd in _held.values()]
    try:
        for name, fd in held:
            request(keeper, {"op": "give", "name": name, "bytes": os.fstat(fd).st_size}, fd=fd)
    finally:
        for _, fd in held:
            with contextlib.suppress(OSError):
                os.close(fd)
    return len(held)


def _let_go(key: int) -> None:
    with _lock:
        _, fd = _held.pop(key)
    os.close(fd)
