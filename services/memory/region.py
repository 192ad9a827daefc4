"""A mapped region: header plus named arrays as torch tensors that share memory with every other process mapping it."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Mapping

import torch
from torch import Tensor

from services.identity import StaleGenerationError
from services.memory import header
from services.memory.descriptors import request
from services.memory.header import Layout
from services.memory.holdings import hold

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
}


class Region:
    """One keeper-owned memfd, mapped shared and writable."""

    def __init__(self, memory: mmap.mmap, layout: Layout) -> None:
        self._memory = memory
        self._view = memoryview(memory)
        self.layout = layout
        offsets = layout.offsets()
        self.arrays: Mapping[str, Tensor] = {
            name: torch.frombuffer(memory, dtype=_DTYPES[spec.dtype], count=spec.numel, offset=offsets[name])
            for name, spec in layout.arrays.items()
            if spec.numel
        }

    @classmethod
    def create(cls, keeper: str, name: str, layout: Layout, generation: int) -> Region:
        """Have the keeper allocate the region (zeroed), map it and write its header (state BUILDING)."""
        _, fd = request(keeper, {"op": "create", "name": name, "bytes": layout.total_bytes})
        memory = _map(name, fd, layout.total_bytes)
        header.write_header(memoryview(memory), layout, generation, os.getpid())
        return cls(memory, layout)

    @classmethod
    def open(cls, keeper: str, name: str) -> Region:
        """Map a region that exists, as a reader or as a peer of its writer.

        Raises:
            HeaderError: the header is not one this version reads.
            KeeperError: the keeper holds no such memory.
        """
        answer, fd = request(keeper, {"op": "open", "name": name})
        memory = _map(name, fd, int(answer["bytes"]))
        layout, _state, _generation = header.read_header(memoryview(memory))
        return cls(memory, layout)

    @classmethod
    def adopt(cls, keeper: str, name: str, generation: int) -> Region:
        """Take over a dead writer's region: its contents stay, the header names the new incarnation.

        The caller must know that the former writer is dead (the keeper killed it or Ray reported the death).

        Raises:
            StaleGenerationError: the region already belongs to this or a younger generation.
            HeaderError: the writer died before the region was complete (state BUILDING).
        """
        region = cls.open(keeper, name)
        current = region.generation
        if generation <= current:
            raise StaleGenerationError.between(f"adoption of {name}", generation, current)
        if not region.ready:
            raise header.HeaderError(f"{name}: generation {current} died before the memory was complete")
        header.set_writer(region._view, generation, os.getpid())
        return region

    @property
    def generation(self) -> int:
        """Generation of the incarnation that writes."""
        return header.read_generation(self._view)

    @property
    def ready(self) -> bool:
        """True once the writer finished building it."""
        return header.read_header(self._view)[1] == header.READY

    def mark_building(self) -> None:
        """The contents are being replaced: until they are complete nobody may adopt them."""
        header.set_state(self._view, header.BUILDING)

    def mark_ready(self) -> None:
        """Declare the contents complete; only then may they be adopted."""
        header.set_state(self._view, header.READY)


def _map(name: str, fd: int | None, nbytes: int) -> mmap.mmap:
    if fd is None:
        raise header.HeaderError("the keeper answered without a descriptor")
    try:
        memory = mmap.mmap(fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except BaseException:
        os.close(fd)
        raise
    hold(name, memory, fd)
    with contextlib.suppress(OSError):  # fewer page faults and TLB misses where the kernel allows it for shmem
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
