"""The keeper's memory that this process maps, with a descriptor of each: what a new keeper is given when one died."""

from __future__ import annotations

import mmap
import os
import weakref

from services.memory.descriptors import KeeperError, request

# No lock: a mapping may be collected at any moment, also in the middle of what follows and on the same thread.
_held: dict[int, tuple[str, int, weakref.ref[mmap.mmap]]] = {}  # id of the mapping → name, descriptor, itself


def hold(name: str, memory: mmap.mmap, fd: int) -> None:
    """Keep ``fd`` as long as ``memory`` is mapped."""
    key = id(memory)
    _held[key] = (name, fd, weakref.ref(memory))
    weakref.finalize(memory, _let_go, key)


def hand_over(keeper: str) -> int:
    """Give a new keeper every region this process maps; returns how many. One that it was given already stays.

    Raises:
        KeeperError: it does not answer, or holds other memory of some name; it has all others then.
    """
    kept = [(name, fd, memory) for name, fd, ref in list(_held.values()) if (memory := ref()) is not None]
    refused: KeeperError | None = None
    for name, fd, _mapped in kept:  # referenced here, so none of the descriptors is closed meanwhile
        try:
            request(keeper, {"op": "give", "name": name, "bytes": os.fstat(fd).st_size}, fd=fd)
        except KeeperError as error:
            refused = refused or error
    if refused is not None:
        raise refused
    return len(kept)


def _let_go(key: int) -> None:
    _, fd, _ = _held.pop(key)
    os.close(fd)
