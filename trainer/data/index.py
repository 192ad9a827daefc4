"""What a scan learns about one file, and how it is cut into splits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

from trainer.data.split import Split


@dataclass(frozen=True, slots=True)
class FileIndex:
    """Rows of one file and the rows where splits may start without extra work.

    ``offsets`` are the byte offsets of ``starts`` in a plain text file, else ``None``; ``size_bytes`` is its size.
    """

    path: str
    rows: int
    starts: tuple[int, ...]
    offsets: tuple[int, ...] | None = None
    size_bytes: int = 0


def coarser(index: FileIndex, split_rows: int) -> FileIndex:
    """The same file with fewer places to cut, at least ``split_rows`` apart."""
    kept: list[int] = []
    for position, row in enumerate(index.starts):
        if not kept or row - index.starts[kept[-1]] >= split_rows:
            kept.append(position)
    offsets = None if index.offsets is None else tuple(index.offsets[position] for position in kept)
    return replace(index, starts=tuple(index.starts[position] for position in kept), offsets=offsets)


def cut(index: FileIndex, start: int, end: int, locate: Callable[[FileIndex, int], int] | None) -> list[Split]:
    """Splits for the rows ``[start, end)`` of a file, in order.

    Args:
        index: the file.
        start: first row.
        end: one past the last row.
        locate: gives the byte offset of a row; used only where the index has offsets.
    """
    edges = [start, *(row for row in index.starts if start < row < end), end]
    if start >= end:
        return []
    if index.offsets is None or locate is None:
        return [Split(index.path, a, b) for a, b in pairwise(edges)]
    known = dict(zip(index.starts, index.offsets, strict=True)) | {index.rows: index.size_bytes}
    offsets = [known[row] if row in known else locate(index, row) for row in edges]
    spans = zip(pairwise(edges), pairwise(offsets), strict=True)
    return [Split(index.path, *rows, *span_bytes) for rows, span_bytes in spans]
