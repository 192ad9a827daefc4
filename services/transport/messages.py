"""What one message to a shard carries: one push and one lookup at most, each either in a slab slot or as arrays."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.generic]

_INT32_MAX = 2**31 - 1


WIRE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Number formats of pooled rows and their gradients between trainer and shard (``cluster.wire``)."""


class Sender(NamedTuple):
    """Who calls (a trainer's thread) and which incarnation of the shard it means."""

    trainer_id: int
    trainer_generation: int
    stream: int
    shard_generation: int


class SlabPush(NamedTuple):
    """Gradient in a slab slot."""

    slab_id: int
    slot: int
    sequence: int
    learning_rate: float


class SlabLookup(NamedTuple):
    """Ids in a slab slot; the pooled rows go into the same slot."""

    slab_id: int
    slot: int


class ObjectPush(NamedTuple):
    """Gradient B×ΣD with everything it needs, as arrays; ids int32 where they fit."""

    sequence: int
    learning_rate: float
    ids: Array
    offsets: Array | None
    batch: int
    grad: Array
    weights: Array | None = None


class ObjectLookup(NamedTuple):
    """Ids as an array; the pooled rows B×ΣD come back as the call's result, in the wire format."""

    ids: Array
    offsets: Array | None
    batch: int
    wire: str
    weights: Array | None = None


def fp16_gradient_scale(batch: int) -> float:
    """What an FP16 gradient is multiplied with on the wire: the largest power of two ≤ B.

    The loss is a mean, so its gradients shrink with 1/B: below 6e-5, where FP16 loses digits, at any usual B. A power
    of two costs no digit itself, and both sides know it.
    """
    return float(1 << (batch.bit_length() - 1))


def narrow_ids(ids: Tensor) -> Tensor:
    """L int64 ids as int32, half the bytes; as they are when one does not fit, for the shard to see and refuse it."""
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) > _INT32_MAX):
        return ids
    return ids.int()


def to_array(tensor: Tensor) -> Array:
    """Contiguous CPU tensor → array without a copy (bfloat16 as its int16 bits)."""
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    array: Array = tensor.numpy()
    return array


def to_tensor(array: Array) -> Tensor:
    """Inverse of ``to_array``."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.int16 else tensor


def mean_array(arrays: Sequence[Array]) -> Array:
    """Mean of float32 arrays of one shape."""
    total = arrays[0].astype("float64")
    for array in arrays[1:]:
        total += array
    mean: Array = (total / len(arrays)).astype("float32")
    return mean


def _spend_read_only_warning() -> None:
    """Let PyTorch give its warning about read-only arrays, once a process, where nobody sees it.

    Arrays that arrive through Ray's object store are read-only, and are never written here.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(np.frombuffer(b"\0", np.uint8))


_spend_read_only_warning()
