"""One Parquet file of predictions: the rows of one split, in order, under their name only when all are there."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.data.split import Split

_GROUP_ROWS = 65_536
_SCHEMA = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("line", pa.int64()),
        pa.field("probability", pa.float32(), nullable=False),
    ]
)

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]


class _Chunk(NamedTuple):
    end: int
    rows: I64
    probabilities: F32


class PartFile:
    """Takes the spans of a split in any order; memory holds what lies between a gap and the furthest span.

    Not thread-safe.
    """

    def __init__(self, path: Path, split: Split, first_line: int | None) -> None:
        """``first_line``: line of the file's row 0, where a row is a line."""
        self._path, self._split, self._first_line = path, split, first_line
        self._partial = path.with_name(f".{path.name}.partial")
        self._early: dict[int, _Chunk] = {}
        self._ready: list[_Chunk] = []
        self._ready_rows = 0
        self._next = split.row_start
        self._writer: pq.ParquetWriter | None = None
        self.rows = 0

    def add(self, start: int, end: int, rows: I64, probabilities: F32) -> bool:
        """Input rows ``[start, end)`` are done: n of them (``rows``) with n probabilities, the others were rejected.

        Returns True when that was the rest of the split and the file has got its name.
        """
        self._early[start] = _Chunk(end, rows, probabilities)
        while (chunk := self._early.pop(self._next, None)) is not None:
            self._next = chunk.end
            self._ready.append(chunk)
            self._ready_rows += len(chunk.rows)
        if self._ready_rows >= _GROUP_ROWS:
            self._flush()
        if self._next < self._split.row_end:
            return False
        if self._ready_rows or self._writer is None:
            self._flush()
        assert self._writer is not None
        self._writer.close()
        self._partial.replace(self._path)
        return True

    def discard(self) -> None:
        """Leave nothing of an unfinished file."""
        if self._writer is not None:
            with contextlib.suppress(OSError):  # the disk may be full
                self._writer.close()
            self._partial.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._partial, _SCHEMA)
        rows = np.concatenate([chunk.rows for chunk in self._ready])
        probabilities = np.concatenate([chunk.probabilities for chunk in self._ready])
        lines = pa.nulls(len(rows), pa.int64()) if self._first_line is None else pa.array(rows + self._first_line)
        files = pa.repeat(pa.scalar(self._split.path, pa.string()), len(rows))
        self._writer.write_table(pa.table([files, pa.array(rows), lines, pa.array(probabilities)], schema=_SCHEMA))
        self.rows += len(rows)
        self._ready, self._ready_rows = [], 0
