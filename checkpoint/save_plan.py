"""The layout of a shard's files, known before a row is copied: chunks, safetensors headers, parts. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from checkpoint.buffers import PAGE_BYTES
from checkpoint.encodings import stored_encoding, stored_form
from checkpoint.manifest import Encoding, Segment
from checkpoint.piece_rows import PieceRows

_ROW_MULTIPLE: Final = 8
"""Rows of a chunk, where there are so many: whatever follows it is then aligned for every dtype."""

NUMPY: Final = {torch.float32: np.float32, torch.float16: np.float16, torch.uint8: np.uint8, torch.int64: np.int64}
"""Of the stored dtypes."""

_NAMES: Final = {torch.float32: "F32", torch.float16: "F16", torch.uint8: "U8", torch.int64: "I64"}


class StoredTensor(NamedTuple):
    """One tensor of a chunk in its file."""

    name: str
    """``ids``, ``weight`` or ``state.{name}``."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    nbytes: int


class Chunk(NamedTuple):
    """What is copied at once: rows ``[start, end)`` of a piece, or of the selected ids where ``sparse``."""

    piece_index: int
    start: int
    end: int
    sparse: bool
    encoding: Encoding
    tensors: tuple[StoredTensor, ...]
    nbytes: int
    """Of all its tensors."""


@dataclass(frozen=True)
class FilePlan:
    """One file: its chunks in order."""

    chunks: tuple[Chunk, ...]

    @cached_property
    def header(self) -> bytes:
        """The safetensors header, padded so that the data begins on a page."""
        entries, offset = {}, 0
        for number, chunk in enumerate(self.chunks):
            for tensor in chunk.tensors:
                end = offset + tensor.nbytes
                entries[f"{prefix(number)}.{tensor.name}"] = {
                    "dtype": _NAMES[tensor.dtype],
                    "shape": tensor.shape,
                    "data_offsets": (offset, end),
                }
                offset = end
        text = json.dumps(entries, separators=(",", ":")).encode()
        length = -(-(8 + len(text)) // PAGE_BYTES) * PAGE_BYTES - 8
        return length.to_bytes(8, "little") + text.ljust(length)

    @cached_property
    def total_bytes(self) -> int:
        """Of the whole file."""
        return len(self.header) + sum(chunk.nbytes for chunk in self.chunks)


def prefix(number: int) -> str:
    """Of the tensors of a file's ``number``-th chunk."""
    return f"s{number:05d}"


def plan_chunks(
    pieces: Sequence[PieceRows], selections: Mapping[int, NDArray[np.int64]], encoding: Encoding, chunk_bytes: int
) -> list[Chunk]:
    """Cut all rows to be saved into chunks of about ``chunk_bytes``, in the order of pieces and rows.

    Args:
        pieces: of the shard.
        selections: ids (piece-local, ascending) by index of the piece; absent: the whole piece.
        encoding: of the weights.
        chunk_bytes: a chunk is at least one row, though.
    """
    chunks = []
    for index, piece in enumerate(pieces):
        selected = selections.get(index)
        total = piece.piece.rows if selected is None else selected.size
        row_bytes = sum(tensor.nbytes for tensor in _tensors(piece, 1, selected is not None, encoding))
        rows = max(1, chunk_bytes // row_bytes)
        rows -= rows % _ROW_MULTIPLE if rows > _ROW_MULTIPLE else 0
        sizes = {count: _tensors(piece, count, selected is not None, encoding) for count in {rows, total % rows}}
        stored = stored_encoding(encoding, piece.weights.dtype)
        for start in range(0, total, rows):
            end = min(start + rows, total)
            tensors = sizes[end - start]
            nbytes = sum(tensor.nbytes for tensor in tensors)
            chunks.append(Chunk(index, start, end, selected is not None, stored, tensors, nbytes))
    return chunks


def split_files(chunks: Sequence[Chunk], part_bytes: int | None) -> Iterator[FilePlan]:
    """Distribute chunks, in order, over files of at most ``part_bytes`` of data (``None``: one file)."""
    part: list[Chunk] = []
    filled = 0
    for chunk in chunks:
        if part and part_bytes is not None and filled + chunk.nbytes > part_bytes:
            yield FilePlan(tuple(part))
            part, filled = [], 0
        part.append(chunk)
        filled += chunk.nbytes
    if part:
        yield FilePlan(tuple(part))


def segment_of(chunk: Chunk, number: int, rows: PieceRows, ids: NDArray[np.int64] | None, cut: int) -> Segment:
    """What the manifest says of a file's ``number``-th chunk, copied at ``cut``; ``ids`` as selected of its piece."""
    piece = rows.piece
    first, last = chunk.start, chunk.end - 1
    if ids is not None:
        first, last = int(ids[first]), int(ids[last])
    return Segment(
        prefix=prefix(number),
        table=piece.table,
        row_start=piece.row_start + first,
        row_end=piece.row_start + last + 1,
        col_start=piece.col_start,
        col_end=piece.col_end,
        rows=chunk.end - chunk.start,
        sparse=chunk.sparse,
        encoding=chunk.encoding,
        cut=cut,
    )


def _tensors(piece: PieceRows, rows: int, sparse: bool, encoding: Encoding) -> tuple[StoredTensor, ...]:
    """In the order of falling alignment."""
    dtype, columns = stored_form(piece.piece.dim, stored_encoding(encoding, piece.weights.dtype))
    found = [_stored("ids", torch.int64, (rows,))] if sparse else []
    found += [_stored(f"state.{name}", state.dtype, (rows, *state.shape[1:])) for name, state in piece.states.items()]
    return (*found, _stored("weight", dtype, (rows, columns)))


def _stored(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> StoredTensor:
    return StoredTensor(name, dtype, shape, math.prod(shape) * dtype.itemsize)
