"""First values of embedding rows: a function of (seed, table, row, column), so equal under any placement."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray

_CHUNK = 1 << 16
"""Floats per pass: 256 KiB, which stays in the cache between drawing and scaling."""

_FLOATS_PER_BLOCK = 8
"""float32 values drawn from one Philox4x64 counter value: four 64-bit words, two values each."""


def initial_rows(
    seed: int,
    table: str,
    table_rows: int,
    dim: int,
    row_start: int,
    row_end: int,
    col_start: int = 0,
    col_end: int | None = None,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Initial weights of rows ``[row_start, row_end)`` × columns ``[col_start, col_end)`` of one table.

    Uniform on ±1/√table_rows, as TorchRec and DLRM do. The generator is counter-based (Philox4x64-10, Salmon et al.,
    SC 2011), keyed by seed and table name and set to the element's position in the whole table: any piece has the
    values that the whole table has there.

    Args:
        seed: the run's seed, 0 ≤ seed < 2⁶³.
        table: table name.
        table_rows: rows of the whole table.
        dim: columns of the whole table.
        row_start: first row.
        row_end: row after the last.
        col_start: first column.
        col_end: column after the last, ``dim`` when ``None``.
        out: float32 array of the piece's shape to fill, of any strides.

    Returns:
        ``out``, or a new array, of shape (row_end - row_start)×(col_end - col_start).

    Raises:
        ValueError: the piece lies outside the table, or ``out`` does not fit.
    """
    col_end = dim if col_end is None else col_end
    if not (0 <= row_start <= row_end <= table_rows and 0 <= col_start <= col_end <= dim):
        raise ValueError(
            f"table {table!r} has {table_rows} rows × {dim} columns: no rows [{row_start}, {row_end}) × columns "
            f"[{col_start}, {col_end})"
        )
    shape = (row_end - row_start, col_end - col_start)
    if out is None:
        out = np.empty(shape, np.float32)
    elif out.shape != shape or out.dtype != np.float32:
        raise ValueError(f"table {table!r}: out must be float32 of shape {shape}, got {out.dtype} {out.shape}")
    if not out.size:
        return out

    stream = _stream_at(seed, table, row_start * dim)
    bound = np.float32(1.0 / np.sqrt(table_rows))
    if shape[1] == dim and out.flags.c_contiguous:
        flat = out.reshape(-1)
        for start in range(0, flat.size, _CHUNK):
            _draw(stream, flat[start : start + _CHUNK], bound)
        return out
    # Whole rows are drawn and cut: skipping inside a row would cost more than the columns it saves.
    rows = max(1, _CHUNK // dim)
    scratch = np.empty(min(rows, shape[0]) * dim, np.float32)
    for row in range(0, shape[0], rows):
        count = min(rows, shape[0] - row)
        whole = scratch[: count * dim]
        _draw(stream, whole, bound)
        out[row : row + count] = whole.reshape(count, dim)[:, col_start:col_end]
    return out


def _stream_at(seed: int, table: str, position: int) -> Generator:
    """The table's stream, next to draw the float at ``position``."""
    digest = blake2b(seed.to_bytes(8, "little") + table.encode(), digest_size=16, person=b"penumbra rows").digest()
    block, skip = divmod(position, _FLOATS_PER_BLOCK)
    stream = Generator(Philox(key=np.frombuffer(digest, "<u8"), counter=block))
    stream.random(skip, dtype=np.float32)
    return stream


def _draw(stream: Generator, out: NDArray[np.float32], bound: np.float32) -> None:
    stream.random(dtype=np.float32, out=out)
    out *= 2 * bound
    out -= bound
