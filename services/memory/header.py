"""The versioned header at the start of every keeper-owned region.

Layout, little endian: one fixed 64-byte part, then a JSON layout (what the region holds), then the arrays, each
aligned to 4096 bytes. Readable without Penumbra, and by an adopter that never met the writer.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAGIC = b"PENUMBRA"
VERSION = 1
FIXED_BYTES = 64
ALIGN_BYTES = 4096

_FIXED = struct.Struct("<8sIIqqqqq")  # magic, version, state, generation, writer pid, layout bytes, data offset, total
_STATE_OFFSET = 12
_GENERATION_OFFSET = 16
_PID_OFFSET = 24

BUILDING = 0
READY = 1

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "uint8": 1}


class HeaderError(ValueError):
    """A region does not start with a header this version can read."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One flat array inside a region: ``numel`` items of ``dtype``."""

    dtype: str
    numel: int

    @property
    def nbytes(self) -> int:
        """Bytes the items take, padding excluded."""
        return ITEM_BYTES[self.dtype] * self.numel


@dataclass(frozen=True, slots=True)
class Layout:
    """What a region holds: who it belongs to, free-form facts (``meta``, JSON values) and named flat arrays."""

    owner: str
    meta: Mapping[str, Any]
    arrays: Mapping[str, ArraySpec]

    def to_json(self) -> bytes:
        """Stable JSON form, as stored in the header."""
        arrays = {name: [spec.dtype, spec.numel] for name, spec in self.arrays.items()}
        return json.dumps({"owner": self.owner, "meta": self.meta, "arrays": arrays}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, raw: bytes) -> Layout:
        """Parse the stored form."""
        data = json.loads(raw)
        arrays = {name: ArraySpec(dtype, numel) for name, (dtype, numel) in data["arrays"].items()}
        return cls(owner=data["owner"], meta=data["meta"], arrays=arrays)

    @property
    def data_offset(self) -> int:
        """Byte offset of the first array."""
        return _align(FIXED_BYTES + len(self.to_json()))

    def offsets(self) -> dict[str, int]:
        """Byte offset of every array, in the (sorted) order they are stored."""
        offset, found = self.data_offset, {}
        for name in sorted(self.arrays):
            found[name] = offset
            offset = _align(offset + self.arrays[name].nbytes)
        return found

    @property
    def total_bytes(self) -> int:
        """Size of the whole region."""
        return self.data_offset + sum(_align(spec.nbytes) for spec in self.arrays.values())


def write_header(buffer: memoryview, layout: Layout, generation: int, pid: int) -> None:
    """Write fixed part and layout; the region stays in state BUILDING until ``set_state``."""
    raw = layout.to_json()
    _FIXED.pack_into(
        buffer, 0, MAGIC, VERSION, BUILDING, generation, pid, len(raw), layout.data_offset, layout.total_bytes
    )
    buffer[FIXED_BYTES : FIXED_BYTES + len(raw)] = raw


def read_header(buffer: memoryview) -> tuple[Layout, int, int]:
    """Read and check a header.

    Returns:
        The layout, the state (BUILDING or READY) and the generation.

    Raises:
        HeaderError: not a Penumbra region, another version, or cut short.
    """
    if len(buffer) < FIXED_BYTES:
        raise HeaderError(f"region of {len(buffer)} bytes is shorter than a header ({FIXED_BYTES} bytes)")
    magic, version, state, generation, _pid, layout_bytes, offset, total_bytes = _FIXED.unpack_from(buffer, 0)
    if magic != MAGIC:
        raise HeaderError(f"region starts with {magic!r}, expected {MAGIC!r}")
    if version != VERSION:
        raise HeaderError(f"region has header version {version}, this build reads version {VERSION}")
    if total_bytes != len(buffer):
        raise HeaderError(f"header says {total_bytes} bytes, the region has {len(buffer)}")
    try:
        layout = Layout.from_json(bytes(buffer[FIXED_BYTES : FIXED_BYTES + layout_bytes]))
        described = (layout.data_offset, layout.total_bytes)
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # a writer that died while it wrote it
        raise HeaderError(f"the layout in the header cannot be read ({error!r})") from error
    if described != (offset, total_bytes):
        raise HeaderError(
            f"the layout says data at {described[0]} of {described[1]} bytes, not {offset} of {total_bytes}"
        )
    return layout, state, generation


def set_state(buffer: memoryview, state: int) -> None:
    """Mark the region BUILDING or READY."""
    struct.pack_into("<I", buffer, _STATE_OFFSET, state)


def set_writer(buffer: memoryview, generation: int, pid: int) -> None:
    """Record the incarnation that writes from now on."""
    struct.pack_into("<q", buffer, _GENERATION_OFFSET, generation)
    struct.pack_into("<q", buffer, _PID_OFFSET, pid)


def read_generation(buffer: memoryview) -> int:
    """Generation of the incarnation that writes the region."""
    return int(struct.unpack_from("<q", buffer, _GENERATION_OFFSET)[0])


def _align(offset: int) -> int:
    return (offset + ALIGN_BYTES - 1) // ALIGN_BYTES * ALIGN_BYTES
