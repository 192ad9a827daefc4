"""What an encoding may lose, against bounds computed in float64 from the rows alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.encodings import DIMS, row_kinds
from checkpoint.encodings import decode, encode, encoded_row_bytes, stored_encoding, stored_form
from checkpoint.errors import EncodingError

_FLOAT = 2.0**-24
"""Half a unit in the last place of float32, relative."""

_EPSILON = 1e-8
"""What fbgemm adds to a row's range before it divides by it (int8)."""


def _fp16_bound(rows: np.ndarray) -> np.ndarray:
    """Half a unit in the last place of half precision; 2^-25 below its smallest normal number."""
    return np.maximum(np.abs(rows) * 2.0**-11, 2.0**-25)


def _int8_bound(rows: np.ndarray) -> np.ndarray:
    """Half of one of 255 steps, what fbgemm's epsilon shrinks the row by, and float32 rounding."""
    low, high = rows.min(1, keepdims=True), rows.max(1, keepdims=True)
    spread = high - low
    shrunk = (rows - low) * (_EPSILON / (spread + _EPSILON))
    return spread / 510 + shrunk + 8 * _FLOAT * np.maximum(abs(low), abs(high))


def _int4_bound(rows: np.ndarray) -> np.ndarray:
    """Half of one of 15 steps, or what rounding bias and step to half precision leaves uncovered at either end.

    The step goes from the rounded bias to the largest value; where half precision makes it zero, only the bias is left.
    """
    low, high = rows.min(1, keepdims=True), rows.max(1, keepdims=True)
    bias = low.astype(np.float16).astype(np.float64)
    step = ((high - bias) / 15).astype(np.float16).astype(np.float64)
    ends = np.maximum(abs(low - bias), abs(high - bias - 15 * step))
    return np.maximum(abs(step) / 2, ends) + 8 * _FLOAT * np.maximum(abs(low), abs(high))


_BOUNDS = {"fp16": _fp16_bound, "int8": _int8_bound, "int4": _int4_bound}


def _error(rows: Tensor, encoding: str) -> np.ndarray:
    decoded = decode(encode(rows, encoding), encoding, rows.shape[1])
    return np.abs(decoded.double().numpy() - rows.double().numpy())


@pytest.mark.parametrize("kind", ["initial", "trained", "tiny"])
@pytest.mark.parametrize("dim", [*DIMS, 5])
@pytest.mark.parametrize("encoding", ["fp16", "int8", "int4"])
def test_no_value_is_further_off_than_the_bound_and_some_are_nearly(encoding: str, dim: int, kind: str) -> None:
    rows = row_kinds(5000, dim)[kind]
    share = _error(rows, encoding) / _BOUNDS[encoding](rows.double().numpy())
    assert share.max() <= 1
    assert share.max() >= 0.9, "the bound says more than it must"


@settings(deadline=None, max_examples=200)
@given(data=st.data(), dim=st.integers(1, 9), exponent=st.integers(-30, 4), offset=st.floats(-1000, 1000, width=32))
@pytest.mark.parametrize("encoding", ["fp16", "int8", "int4"])
def test_the_bound_holds_for_any_row(
    encoding: str, data: st.DataObject, dim: int, exponent: int, offset: float
) -> None:
    values = data.draw(st.lists(st.floats(-1, 1, width=32), min_size=dim, max_size=dim))
    rows = torch.tensor([values]) * 10.0**exponent + offset * data.draw(st.sampled_from([0, 1]))
    assert (_error(rows, encoding) <= _BOUNDS[encoding](rows.double().numpy())).all()


def test_a_row_of_one_value_is_exact_in_int8_and_half_precision_in_int4() -> None:
    rows = torch.tensor([[0.3] * 8, [-1e-3] * 8, [0.0] * 8])
    assert torch.equal(decode(encode(rows, "int8"), "int8", 8), rows)
    assert ((decode(encode(rows, "int4"), "int4", 8) - rows).abs() <= rows.abs() * 2.0**-11).all()


@pytest.mark.parametrize("encoding", ["fp32", "fp16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_fits_comes_back_bit_by_bit(encoding: str, dtype: torch.dtype) -> None:
    rows = torch.randn(50, 7).half().to(dtype)
    assert torch.equal(decode(encode(rows, encoding), encoding, 7), rows.float())


@pytest.mark.parametrize("encoding", ["fp32", "fp16", "int8", "int4"])
@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5, 16, 63])
def test_the_form_is_known_before_anything_is_encoded(encoding: str, dim: int) -> None:
    rows = torch.randn(3, dim)
    encoded = encode(rows, encoding)
    assert (encoded.dtype, encoded.shape[1]) == stored_form(dim, encoding)
    assert encoded[:1].nbytes == encoded_row_bytes(dim, encoding)
    into = torch.empty_like(encoded)
    assert encode(rows, encoding, into) is into
    assert torch.equal(into, encoded)
    strided = torch.zeros(3, 2 * encoded.shape[1], dtype=encoded.dtype)[:, ::2]
    assert torch.equal(encode(rows, encoding, strided), encoded)
    half = torch.empty(3, dim, dtype=torch.float16)
    assert torch.equal(decode(encoded, encoding, dim, half), decode(encoded, encoding, dim).half())
    assert encode(rows[:0], encoding).shape == (0, encoded.shape[1])
    assert decode(encoded[:0], encoding, dim).shape == (0, dim)


@pytest.mark.parametrize(
    ("encoding", "value"),
    [("fp16", 65520.0), ("int4", 7e4), ("int8", 3e38), ("fp16", torch.nan), ("int8", torch.inf), ("int4", -torch.inf)],
)
def test_values_that_do_not_fit_are_refused_with_the_remedy(encoding: str, value: float) -> None:
    rows = torch.ones(4, 8)
    rows[2, 3] = value
    with pytest.raises(EncodingError, match=r"checkpoint\.encoding to fp32"):
        encode(rows, encoding)


def test_bytes_of_another_form_are_refused() -> None:
    with pytest.raises(EncodingError, match="int8 rows of 8 columns are stored as 16 columns"):
        decode(encode(torch.ones(2, 8), "int4"), "int8", 8)


def test_fp16_rows_are_never_written_larger_than_they_are() -> None:
    assert stored_encoding("fp32", torch.float16) == "fp16"
    assert stored_encoding("fp32", torch.float32) == "fp32"
    assert stored_encoding("int8", torch.float16) == "int8"
