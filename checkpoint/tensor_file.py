"""Where the tensors of a safetensors file lie, so that parts of them can be read without the rest."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final

import torch

from checkpoint.errors import SaveCorrupt
from checkpoint.steady_file import ReadableFile

_DTYPES: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LENGTH_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 100_000_000
"""The format's own limit."""


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """One tensor: ``start`` and ``bytes`` count from the start of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    bytes: int

    @property
    def row_bytes(self) -> int:
        """Of one index of the first dimension."""
        return self.bytes // self.shape[0] if self.shape and self.shape[0] else 0


def read_header(file: ReadableFile, file_bytes: int, where: str) -> dict[str, TensorSlot]:
    """The tensors of a file by name (https://huggingface.co/docs/safetensors#format).

    Args:
        file: open for reading; its position is left behind the header.
        file_bytes: its size.
        where: the file's name for messages.

    Raises:
        SaveCorrupt: it is no safetensors file, or a tensor lies outside it.
    """
    file.seek(0)
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if not 2 <= length <= min(_MAX_HEADER_BYTES, file_bytes - _LENGTH_BYTES):
        raise SaveCorrupt(f"{where}: no safetensors file: {file_bytes} bytes, of which {length} would be the header")
    try:
        header = json.loads(file.read(length))
        slots = {name: _slot(entry, _LENGTH_BYTES + length) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SaveCorrupt(f"{where}: the safetensors header is damaged: {error}") from error
    for name, slot in slots.items():
        if slot.start + slot.bytes > file_bytes:
            raise SaveCorrupt(f"{where}: tensor {name!r} ends at byte {slot.start + slot.bytes} of {file_bytes}")
    return slots


def _slot(entry: dict[str, Any], data_start: int) -> TensorSlot:
    dtype, shape, (start, end) = _DTYPES[entry["dtype"]], tuple(map(int, entry["shape"])), entry["data_offsets"]
    if not 0 <= start <= end or end - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{entry['dtype']} of shape {list(shape)} in bytes [{start}, {end})")
    return TensorSlot(dtype, shape, data_start + start, end - start)
