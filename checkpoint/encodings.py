"""How rows are written: as they are, in half the bits, or quantized row by row with fbgemm's operators.

Optimizer state is never encoded. What each encoding loses is measured in ``docs/checkpoints.md``.
"""

from __future__ import annotations

import math

import fbgemm_gpu  # noqa: F401  registers torch.ops.fbgemm
import torch
from torch import Tensor

from checkpoint.errors import EncodingError
from checkpoint.manifest import Encoding

_HALF_MAX = 65504.0
_INT4_LEVELS = 15
_INT4_MULTIPLE = 4
"""fbgemm packs int4 rows only when their width is a multiple of this; others are widened with their first value."""


def stored_encoding(encoding: Encoding, dtype: torch.dtype) -> Encoding:
    """What rows of ``dtype`` are really written as: FP16 rows are exact in fp16, so fp32 would only be larger."""
    return "fp16" if encoding == "fp32" and dtype == torch.float16 else encoding


def encoded_row_bytes(dim: int, encoding: Encoding) -> int:
    """Bytes of one encoded row of ``dim`` columns.

    int8: dim codes, float32 scale and bias. int4: ⌈dim/4⌉·2 bytes of codes, float16 scale and bias.
    """
    if encoding == "int8":
        return dim + 8
    if encoding == "int4":
        return _widened(dim) // 2 + 4
    return dim * (4 if encoding == "fp32" else 2)


def stored_form(dim: int, encoding: Encoding) -> tuple[torch.dtype, int]:
    """(dtype, columns) of the tensor in which encoded rows are written."""
    if encoding == "fp32":
        return torch.float32, dim
    if encoding == "fp16":
        return torch.float16, dim
    return torch.uint8, encoded_row_bytes(dim, encoding)


def encode(rows: Tensor, encoding: Encoding, out: Tensor | None = None) -> Tensor:
    """Encode rows.

    Args:
        rows: n×dim, float32 or float16.
        encoding: the form to write.
        out: tensor of n × ``stored_form(dim, encoding)`` to fill; a new one when ``None``.

    Returns:
        ``out``, or the new tensor.

    Raises:
        EncodingError: a lossy encoding cannot hold the values (too large, or not finite).
    """
    count, dim = rows.shape
    if out is None:
        dtype, columns = stored_form(dim, encoding)
        out = torch.empty(count, columns, dtype=dtype)
    if not count:
        return out
    if encoding == "fp32" or (encoding == "fp16" and rows.dtype == torch.float16):
        return out.copy_(rows)
    _check_range(rows, encoding)
    if encoding == "fp16":
        return out.copy_(rows)
    floats = rows.float()
    if encoding == "int8":
        if out.is_contiguous():
            torch.ops.fbgemm.FloatToFused8BitRowwiseQuantizedOut(out, floats)
            return out
        return out.copy_(torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(floats))
    if _widened(dim) != dim:
        floats = torch.cat((floats, floats[:, :1].expand(count, _widened(dim) - dim)), dim=1)
    return out.copy_(torch.ops.fbgemm.FloatToFusedNBitRowwiseQuantizedSBHalf(floats, 4))


def decode(encoded: Tensor, encoding: Encoding, dim: int, out: Tensor | None = None) -> Tensor:
    """Inverse of ``encode``, up to its loss.

    Args:
        encoded: n × ``stored_form(dim, encoding)``.
        encoding: how it was written.
        dim: columns D of the rows.
        out: n×D, float32 or float16, to fill; a new float32 tensor when ``None``.

    Returns:
        n×D rows.

    Raises:
        EncodingError: ``encoded`` is not of that form.
    """
    form = stored_form(dim, encoding)
    if encoded.dim() != 2 or (encoded.dtype, encoded.shape[1]) != form:
        raise EncodingError(
            f"{encoding} rows of {dim} columns are stored as {form[1]} columns of {form[0]}, got "
            f"{tuple(encoded.shape)} {encoded.dtype}"
        )
    floats: Tensor
    if not encoded.shape[0]:  # fbgemm's operators fail on none
        floats = torch.empty(0, dim)
    elif encoding == "int8":
        floats = torch.ops.fbgemm.Fused8BitRowwiseQuantizedToFloat(encoded)
    elif encoding == "int4":
        floats = torch.ops.fbgemm.FusedNBitRowwiseQuantizedSBHalfToFloat(encoded, 4)[:, :dim]
    else:
        floats = encoded
    return floats.float() if out is None else out.copy_(floats)


def _widened(dim: int) -> int:
    return -(-dim // _INT4_MULTIPLE) * _INT4_MULTIPLE


def _check_range(rows: Tensor, encoding: Encoding) -> None:
    """Raise unless the rows, and the scale and bias that int4 keeps in half precision, are finite when encoded."""
    low, high = (float(bound) for bound in torch.aminmax(rows))
    limit = {"fp16": _HALF_MAX, "int4": _HALF_MAX, "int8": torch.finfo(torch.float32).max / 2}[encoding]
    spread_fits = encoding != "int4" or (high - low) / _INT4_LEVELS <= _HALF_MAX
    if math.isfinite(low) and math.isfinite(high) and -limit <= low and high <= limit and spread_fits:
        return
    raise EncodingError(
        f"rows between {low:g} and {high:g} cannot be written as {encoding}, which holds finite values up to "
        f"±{limit:g}; set checkpoint.encoding to fp32"
    )
