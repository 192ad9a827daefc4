"""MLPerf's binary day files: ``day_0_dense.npy``, ``day_0_sparse.npy``, ``day_0_labels.npy``.

Dense values are taken as they are: TorchRec's preprocessing transforms them when it writes the files. With
``multi_hot`` the ids are in ``day_0_sparse_multi_hot.npz``, arrays "0" to "25" of N rows and as many ids each as the
feature is hot (MLCommons' DLRM-DCNv2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trainer.data.block import F32, I64, U64, RawBlock, RejectedLine
from trainer.data.criteo import DENSE, LABEL, SPARSE
from trainer.data.errors import DataError
from trainer.data.files import exists, open_file
from trainer.data.index import FileIndex
from trainer.data.npy_file import NpyRows, zip_members
from trainer.data.paths import resolve_files
from trainer.data.schema import FeatureSchema, FeatureSpec
from trainer.data.split import Split

_DENSE: Final = "_dense.npy"


@dataclass(frozen=True)
class NpyDays:
    """A day is named by its dense file. Stateless, so it can be shared by threads and pickled."""

    labeled: bool
    multi_hot: bool
    locate = None
    first_line = None

    @property
    def schema(self) -> FeatureSchema:
        """Criteo's columns; every category is multi-hot or none."""
        return FeatureSchema(DENSE, tuple(FeatureSpec(name, self.multi_hot) for name in SPARSE), self.labeled)

    def resolve(self, patterns: str | Sequence[str]) -> list[str]:
        """Dense files behind ``patterns``; in a directory those that end in ``_dense.npy``."""
        found = resolve_files(patterns, (_DENSE,))
        days = [path for path in found if path.endswith(_DENSE)]
        if not days:
            raise DataError(", ".join(found), f"no file ends in {_DENSE}; data.format={self._format} names days by it")
        return days

    def scan(self, path: str, rows_per_split: int) -> FileIndex:
        """Reads only the headers."""
        with _Day(path, self) as day:
            return FileIndex(path, day.rows, tuple(range(0, day.rows, rows_per_split)))

    def has_label(self, path: str) -> bool:
        """Whether the day has a file of labels."""
        return exists(f"{path.removesuffix(_DENSE)}_labels.npy")

    def read(self, split: Split, ranges: Sequence[tuple[int, int]], block_rows: int) -> Iterator[RawBlock]:
        """Blocks of at most ``block_rows`` rows that cover ``ranges`` of the split exactly."""
        with _Day(split.path, self) as day:
            if day.rows < split.row_end:
                raise DataError(split.path, f"has {day.rows} rows, {split.row_end} were planned: the file has changed")
            for start, end in ranges:
                for row in range(start, end, block_rows):
                    yield day.block(row, min(row + block_rows, end))

    @property
    def _format(self) -> str:
        return "npy_multi_hot" if self.multi_hot else "npy"


class _Day(ExitStack):
    """The open files of one day."""

    def __init__(self, path: str, days: NpyDays) -> None:
        super().__init__()
        self._path = path
        stem = path.removesuffix(_DENSE)
        try:
            self._dense = self._array(path, (len(DENSE),))
            self._labels = self._array(f"{stem}_labels.npy", None) if days.labeled else None
            self._one_hot = None if days.multi_hot else self._array(f"{stem}_sparse.npy", (len(SPARSE),))
            self._lists = self._members(f"{stem}_sparse_multi_hot.npz") if days.multi_hot else []
            others = [array for array in (self._labels, self._one_hot, *self._lists) if array is not None]
            if any(array.rows != self._dense.rows for array in others):
                counts = sorted({array.rows for array in others})
                raise DataError(path, f"has {self._dense.rows} rows, the other files of that day have {counts}")
        except BaseException:
            self.close()
            raise

    @property
    def rows(self) -> int:
        return self._dense.rows

    def block(self, start: int, end: int) -> RawBlock:
        dense = self._dense.read(start, end).astype(np.float32, copy=False)
        labels: F32 = np.zeros(end - start, dtype=np.float32)
        bad_labels = np.zeros(end - start, dtype=np.bool_)
        raw_labels: NDArray[Any] = labels
        if self._labels is not None:
            raw_labels = self._labels.read(start, end).reshape(end - start)
            labels = (raw_labels == 1).astype(np.float32)
            bad_labels = (raw_labels != 0) & (raw_labels != 1)
        bad_dense = ~np.isfinite(dense)
        bad = bad_labels | bad_dense.any(axis=1)
        columns = self._columns(start, end)
        if not bad.any():
            return RawBlock(dense, labels, _categories(columns, self._one_hot is not None), start, end)
        keep = np.flatnonzero(~bad)
        rejected = []
        for at in np.flatnonzero(bad):
            if bad_labels[at]:
                place, found, expected = LABEL, str(raw_labels[at]), "0 or 1"
            else:
                column = int(bad_dense[at].argmax())
                place, found, expected = DENSE[column], str(dense[at, column]), "a finite number"
            rejected.append(RejectedLine(self._path, start + int(at) + 1, place, found, expected))
        categories = _categories([column[keep] for column in columns], self._one_hot is not None)
        return RawBlock(dense[keep], labels[keep], categories, start, end, keep + start, rejected)

    def _columns(self, start: int, end: int) -> list[U64]:
        """Ids of each feature, n×H."""
        if self._one_hot is not None:
            return [column[:, None] for column in _unsigned(self._one_hot.read(start, end)).T]
        return [_unsigned(array.read(start, end)).reshape(end - start, -1) for array in self._lists]

    def _array(self, path: str, row_shape: tuple[int, ...] | None) -> NpyRows:
        array = NpyRows(self.enter_context(open_file(path)), path)
        scalars = row_shape is None and array.shape[1:] in ((), (1,))
        if not scalars and array.shape[1:] != row_shape:
            wanted = "rows of one number" if row_shape is None else f"rows of {row_shape[0]} numbers"
            raise DataError(path, f"has the shape {array.shape}; expected are {wanted}")
        return array

    def _members(self, path: str) -> list[NpyRows]:
        file = self.enter_context(open_file(path))
        starts = zip_members(file, path)
        missing = [str(f) for f in range(len(SPARSE)) if str(f) not in starts]
        if missing:
            raise DataError(path, f"lacks the arrays {', '.join(missing)}; wanted are 0 to {len(SPARSE) - 1}")
        return [NpyRows(file, path, starts[str(f)]) for f in range(len(SPARSE))]


def _unsigned(ids: NDArray[Any]) -> U64:
    """32-bit hashes come as int32, half of them negative."""
    if ids.dtype == np.int32:
        return ids.view(np.uint32).astype(np.uint64)
    return ids.astype(np.uint64)


def _categories(columns: list[U64], one_hot: bool) -> U64 | list[tuple[U64, I64]]:
    if one_hot:
        return np.stack([column[:, 0] for column in columns])
    return [(c.reshape(-1), np.full(c.shape[0], c.shape[1], dtype=np.int64)) for c in columns]
