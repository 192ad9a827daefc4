"""Writes a safetensors file tensor by tensor: only one of them need be in memory."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from checkpoint.checked_reader import byte_view

_NAMES: Final = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_ALIGNMENT: Final = 8


@dataclass(frozen=True, slots=True)
class TensorForm:
    """Type and shape of a tensor that is not there yet."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in memory and in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_safetensors(
    path: Path, forms: Mapping[str, TensorForm], tensor: Callable[[str], Tensor], metadata: Mapping[str, str]
) -> None:
    """Write and fsync.

    Args:
        path: file to create.
        forms: of all tensors, by name.
        tensor: gives each of them, when its turn comes.
        metadata: goes into the header.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, form in forms.items():
        offsets = [end, end + form.nbytes]
        header[name] = {"dtype": _NAMES[form.dtype], "shape": list(form.shape), "data_offsets": offsets}
        end = offsets[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in forms:
            file.write(byte_view(tensor(name).contiguous()))
        file.flush()
        os.fsync(file.fileno())
