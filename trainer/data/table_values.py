"""Arrow columns of a user's own table to numbers and raw category values; each with the rows that are malformed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainer.data.arrow_columns import joined_text, plain_column
from trainer.data.block import F32, I64, MISSING, U64
from trainer.data.errors import DataError
from trainer.data.swar import Bools
from trainer.data.tokens import token_values


class Lists(NamedTuple):
    """n lists with L items in all: L raw values, n lengths, L weights where there are any, malformed rows."""

    values: U64
    lengths: I64
    weights: F32 | None
    bad: Bools | None


def numbers(column: pa.Array, name: str, path: str) -> tuple[NDArray[Any], Bools | None]:
    """n float64, 0 where missing (null, NaN, empty text), and which are no finite number."""
    column = plain_column(column)
    if pa.types.is_null(column.type):
        return np.zeros(len(column)), None
    if pa.types.is_string(column.type):
        return _parsed(column)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    elif pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise DataError(path, f"column {name!r} has type {column.type}; a dense column has numbers")
    values = np.asarray(column.cast(pa.float64(), safe=False).fill_null(0.0))
    infinite = np.isinf(values)
    return np.where(np.isfinite(values), values, 0.0), infinite if infinite.any() else None


def ids(column: pa.Array, name: str, path: str) -> tuple[U64, Bools | None]:
    """n raw category values, ``MISSING`` where there is none, and which numbers are not whole."""
    column = plain_column(column)
    if pa.types.is_null(column.type):
        return np.full(len(column), MISSING, dtype=np.uint64), None
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if pa.types.is_floating(column.type):
        return _float_ids(column)
    if pa.types.is_integer(column.type):
        return _integer_ids(column), None
    if not pa.types.is_string(column.type):
        raise DataError(path, f"column {name!r} has type {column.type}; ids are text or whole numbers")
    buffer, starts, ends = joined_text([column])
    return token_values(buffer, starts[0], ends[0]), None


def lists(column: pa.Array, weights: pa.Array | None, name: str, path: str, separator: str) -> Lists:
    """Ids of a multi-hot column: a list column, or text with a separator. No id, ``null`` and empty text are no items.

    Rows whose weights are not as many as their ids, or not finite, are malformed.
    """
    items, offsets = _items(column, name, path, separator)
    values, bad_items = ids(items, name, path)
    bad = _rows_of(bad_items | (values == MISSING) if bad_items is not None else values == MISSING, offsets)
    lengths = np.diff(offsets)
    if weights is None:
        return Lists(values, lengths, None, bad if bad.any() else None)
    weight_items, weight_offsets = _items(weights, name, path, separator)
    amounts, bad_weights = numbers(weight_items, name, path)
    wrong = np.diff(weight_offsets) != lengths
    if bad_weights is not None:
        wrong |= _rows_of(bad_weights, weight_offsets)
    if wrong.any():
        return Lists(values, lengths, None, bad | wrong)
    return Lists(values, lengths, amounts.astype(np.float32), bad if bad.any() else None)


def _parsed(column: pa.Array) -> tuple[NDArray[Any], Bools | None]:
    """Text as float64: all at once, one by one when some of it is no number."""
    empty = np.asarray(pc.equal(column, "").fill_null(True))
    filled = pc.if_else(pa.array(empty), pa.scalar("0"), column)
    try:
        values = np.asarray(filled.cast(pa.float64()))
    except pa.ArrowInvalid:
        values = np.array([_number(text) for text in filled.to_pylist()])
    bad = ~np.isfinite(values)
    return np.where(bad, 0.0, values), bad if bad.any() else None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def _float_ids(column: pa.Array) -> tuple[U64, Bools | None]:
    """Whole numbers as pandas writes them beside nulls."""
    missing = np.asarray(column.is_null(nan_is_null=True))
    values = np.where(missing, 0.0, np.asarray(column.cast(pa.float64()).fill_null(0.0)))
    bad = (values != np.floor(values)) | (np.abs(values) > 2**53)
    whole = np.where(bad, 0.0, values).astype(np.int64)
    return _integer_ids(pa.array(whole, mask=missing)), bad if bad.any() else None


def _integer_ids(column: pa.Array) -> U64:
    """The same values as the numbers' text has."""
    missing = np.asarray(column.is_null())
    numbers = np.asarray(column.fill_null(0))
    values = numbers.astype(np.uint64)
    large = np.flatnonzero((numbers < 0) | (values >= MISSING))
    if large.size:
        buffer, starts, ends = joined_text([pa.array(numbers[large]).cast(pa.string())])
        values[large] = token_values(buffer, starts[0], ends[0])
    values[missing] = MISSING
    return values


def _items(column: pa.Array, name: str, path: str, separator: str) -> tuple[pa.Array, I64]:
    """L items of n lists, and n+1 offsets into them."""
    column = plain_column(column)
    if pa.types.is_string(column.type):
        column = pc.split_pattern(pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column), separator)
    elif pa.types.is_null(column.type):
        column = column.cast(pa.list_(pa.string()))
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise DataError(path, f"column {name!r} has type {column.type}; a list column has lists, or text to split")
    lengths = np.asarray(pc.list_value_length(column).fill_null(0)).astype(np.int64)
    return column.flatten(), np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths)))


def _rows_of(items: Bools, offsets: I64) -> Bools:
    """Which of n lists hold a marked item."""
    rows = np.zeros(len(offsets) - 1, dtype=np.bool_)
    rows[np.searchsorted(offsets, np.flatnonzero(items), "right") - 1] = True
    return rows
