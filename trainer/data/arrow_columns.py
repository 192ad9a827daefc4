"""Arrow columns (text, integers, floats that hold integers) to the arrays of a ``RawBlock``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainer.data.block import F32, I64, MISSING, U64
from trainer.data.errors import DataError
from trainer.data.swar import PAD_BYTES, Bools, Bytes, decode_hex, decode_int


def decode_labels(column: pa.Array, path: str) -> tuple[F32, Bools | None]:
    """n float32 labels, and which are not 0 or 1."""
    column = plain_column(column)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if _is_text(column):
        labels = np.asarray(pc.equal(column, "1").fill_null(False)).astype(np.float32)
        bad = (labels == 0) & ~np.asarray(pc.equal(column, "0").fill_null(False))
    else:
        numbers, empty = _numbers(column, "label", path)
        labels = (numbers == 1).astype(np.float32)
        bad = ((numbers != 0) & (numbers != 1)) | empty
    return labels, bad if bad.any() else None


def decode_counts(columns: Sequence[pa.Array], names: Sequence[str], path: str) -> tuple[NDArray[Any], Bools | None]:
    """I×n non-negative integers (missing and negative ones are 0), and which are malformed."""
    columns = [plain_column(column) for column in columns]
    if all(_is_text(column) for column in columns):
        return decode_int(*joined_text(columns))
    values = np.zeros((len(columns), len(columns[0])), dtype=np.float64)
    bad = np.zeros(values.shape, dtype=np.bool_)
    for i, (column, name) in enumerate(zip(columns, names, strict=True)):
        if _is_text(column):
            part, flags = decode_int(*joined_text([column]))
            values[i] = part[0]
            if flags is not None:
                bad[i] = flags[0]
            continue
        numbers, empty = _numbers(column, name, path)
        if numbers.dtype.kind == "f":
            bad[i] = ~empty & (numbers != np.floor(numbers)) | np.isinf(numbers)
        np.maximum(np.where(empty | bad[i], 0, numbers), 0, out=values[i], casting="unsafe")
    return values, bad if bad.any() else None


def decode_categories(columns: Sequence[pa.Array], names: Sequence[str], path: str) -> tuple[U64, Bools | None]:
    """F×n raw category values, and which are malformed."""
    columns = [plain_column(column) for column in columns]
    if all(_is_text(column) for column in columns):
        return decode_hex(*joined_text(columns))
    values = np.empty((len(columns), len(columns[0])), dtype=np.uint64)
    bad = np.zeros(values.shape, dtype=np.bool_)
    for i, (column, name) in enumerate(zip(columns, names, strict=True)):
        if _is_text(column):
            part, flags = decode_hex(*joined_text([column]))
            values[i] = part[0]
            if flags is not None:
                bad[i] = flags[0]
            continue
        numbers, empty = _numbers(column, name, path)
        if numbers.dtype != np.uint32:
            bad[i] = ~empty & ~((numbers >= 0) & (numbers < MISSING) & (numbers == np.floor(numbers)))
        values[i] = np.where(empty | bad[i], 0, numbers).astype(np.uint64)
        values[i][empty] = MISSING
    return values, bad if bad.any() else None


def plain_column(column: pa.Array) -> pa.Array:
    """One array in the plainest type: no chunks, dictionary or large text; bytes count as text, unchecked."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    elif pa.types.is_binary(column.type):  # text without an annotation, as old writers leave it
        column = column.view(pa.string())
    return column


def _is_text(column: pa.Array) -> bool:
    return bool(pa.types.is_string(column.type))


def _numbers(column: pa.Array, name: str, path: str) -> tuple[NDArray[Any], Bools]:
    """n numbers in their own type, and which are missing (null or NaN; 0 stands there)."""
    if pa.types.is_null(column.type):
        return np.zeros(len(column)), np.ones(len(column), dtype=np.bool_)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise DataError(path, f"column {name!r} has type {column.type}; wanted is text or integers")
    empty = (
        np.asarray(column.is_null(nan_is_null=True)) if column.null_count or pa.types.is_floating(column.type) else None
    )
    if empty is None:
        return np.asarray(column), np.zeros(len(column), dtype=np.bool_)
    numbers = np.asarray(column.fill_null(0))
    return np.where(empty, np.zeros((), numbers.dtype), numbers), empty


def joined_text(columns: Sequence[pa.Array]) -> tuple[Bytes, I64, I64]:
    """One padded byte buffer for k text columns of n rows, and k×n starts and ends in it (null is empty)."""
    pad = np.zeros(PAD_BYTES, dtype=np.uint8)
    rows = len(columns[0])
    starts = np.empty((len(columns), rows), dtype=np.int64)
    ends = np.empty_like(starts)
    pieces: list[Bytes] = [pad]
    at = PAD_BYTES
    for i, column in enumerate(columns):
        _, offsets_buffer, data_buffer = column.buffers()
        offsets = np.frombuffer(offsets_buffer, dtype=np.int32, count=rows + 1, offset=4 * column.offset)
        low, high = int(offsets[0]), int(offsets[-1])
        if high > low:
            pieces.append(np.frombuffer(data_buffer, dtype=np.uint8, count=high - low, offset=low))
        np.add(offsets[:-1], at - low, out=starts[i])
        np.add(offsets[1:], at - low, out=ends[i])
        if column.null_count:
            null = np.asarray(column.is_null())
            ends[i][null] = starts[i][null]
        at += high - low
    return np.concatenate((*pieces, pad)), starts, ends
