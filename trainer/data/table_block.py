"""A record batch of a user's own table to a ``RawBlock``, by the map in ``data.columns``."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainer.config import ColumnsConfig
from trainer.data.arrow_columns import decode_labels, plain_column
from trainer.data.block import F32, I64, U64, RawBlock, RejectedLine, shorten, signed_log1p, squash_dense
from trainer.data.errors import DataError
from trainer.data.schema import FeatureSchema, FeatureSpec
from trainer.data.swar import Bools
from trainer.data.table_values import ids, lists, numbers

_LISTED: Final = 60
_NAME: Final = re.compile(r"[A-Za-z_][\w .-]*")
_TRANSFORMS: Final[dict[str, Callable[[NDArray[Any]], F32]]] = {
    "signed_log1p": signed_log1p,
    "log1p": squash_dense,
    "none": lambda values: values.astype(np.float32),
}


@dataclass(frozen=True)
class TableMap:
    """Roles of columns. Text as bytes is checked for UTF-8 here."""

    columns: ColumnsConfig
    labeled: bool

    @property
    def schema(self) -> FeatureSchema:
        """Dense columns; categorical ones, then lists."""
        columns = self.columns
        one_hot = (FeatureSpec(name, multi_hot=False) for name in columns.categorical)
        multi_hot = (FeatureSpec(name, True, weighted=item.weights is not None) for name, item in columns.lists.items())
        return FeatureSchema(columns.dense, (*one_hot, *multi_hot), self.labeled)

    @property
    def needed(self) -> list[str]:
        """Names of all columns that are read."""
        columns = self.columns
        label = [columns.label] if self.labeled and columns.label else []
        weights = [item.weights for item in columns.lists.values() if item.weights]
        return [*label, *columns.dense, *columns.categorical, *columns.lists, *weights]

    def check_names(self, path: str, names: Sequence[str]) -> None:
        """Makes sure that the file has every mapped column.

        Raises:
            DataError: with the columns that are missing, and those that are there.
        """
        missing = [name for name in self.needed if name not in names]
        if missing:
            near = difflib.get_close_matches(missing[0], names, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            listed = ", ".join(names[:_LISTED]) + (f" … ({len(names)} in all)" if len(names) > _LISTED else "")
            raise DataError(
                path, f"has no column {', '.join(map(repr, missing))}, which data.columns names{hint}; it has {listed}"
            )

    def block(self, batch: pa.RecordBatch, path: str, row: int, first_line: int) -> RawBlock:
        """The rows of ``batch``, which begin with row ``row`` of the file; that row is line ``first_line`` + 1."""
        decoded = _Decoded(self, batch, path)
        if not decoded.bad:
            return decoded.block(row, row + batch.num_rows)
        wrong = np.logical_or.reduce(list(decoded.bad.values()))
        rejected = [self._rejected(decoded, path, int(at), first_line) for at in np.flatnonzero(wrong)]
        keep = np.flatnonzero(~wrong)
        block = _Decoded(self, decoded.batch.take(pa.array(keep)), path).block(row, row + batch.num_rows)
        block.row_index, block.rejected = keep + row, rejected
        return block

    def _rejected(self, decoded: _Decoded, path: str, at: int, first_line: int) -> RejectedLine:
        column = next(name for name, rows in decoded.bad.items() if rows[at])
        value: Any = decoded.batch.column(column)[at].as_py()
        found = _shown(value)
        columns = self.columns
        if column == columns.label:
            expected = "0 or 1"
        elif column in columns.dense:
            expected = "a finite number, or nothing"
        elif column in columns.lists and (weights := columns.lists[column].weights) is not None:
            amounts = decoded.batch.column(weights)[at].as_py()
            found += f" with weights {_shown(amounts)}"
            expected = "a list of ids and as many finite numbers as weights"
        else:
            expected = (
                "text or a whole number" if column in columns.categorical else "a list of ids, none of them empty"
            )
        numeric = column == columns.label or column in columns.dense
        if numeric and not columns.header and first_line + at == 0 and _NAME.fullmatch(str(value)):
            expected += "; this looks like a header: set data.columns.header=true"
        return RejectedLine(path, first_line + at + 1, column, found, expected)


class _Decoded:
    """The columns of a batch as arrays, and the malformed rows of each."""

    def __init__(self, table: TableMap, batch: pa.RecordBatch, path: str) -> None:
        columns = table.columns
        self.bad: dict[str, Bools] = {}
        self.batch, batch = self._text(batch)
        rows = batch.num_rows
        self.labels: F32 = np.zeros(rows, dtype=np.float32)
        if table.labeled and columns.label:
            self.labels, bad = decode_labels(batch.column(columns.label), path)
            self._note(columns.label, bad)
        values = np.zeros((rows, len(columns.dense)))
        for i, name in enumerate(columns.dense):
            values[:, i], bad = numbers(batch.column(name), name, path)
            self._note(name, bad)
        self.dense = _TRANSFORMS[columns.dense_transform](values)
        one_hot: list[U64] = []
        for name in columns.categorical:
            column, bad = ids(batch.column(name), name, path)
            one_hot.append(column)
            self._note(name, bad)
        self.categories: U64 | list[tuple[U64, I64]]
        self.weights: list[F32 | None] | None = None
        if not columns.lists:
            self.categories = np.stack(one_hot)
            return
        ones = np.ones(rows, dtype=np.int64)
        self.categories = [(column, ones) for column in one_hot]
        weights: list[F32 | None] = [None] * len(one_hot)
        for name, item in columns.lists.items():
            amounts = batch.column(item.weights) if item.weights else None
            found = lists(batch.column(name), amounts, name, path, columns.list_separator)
            self.categories.append((found.values, found.lengths))
            weights.append(found.weights)
            self._note(name, found.bad)
        if any(item.weights for item in columns.lists.values()):
            self.weights = weights

    def block(self, start: int, end: int) -> RawBlock:
        return RawBlock(self.dense, self.labels, self.categories, start, end, weights=self.weights)

    def _note(self, name: str, bad: Bools | None) -> None:
        if bad is not None:
            self.bad[name] = self.bad[name] | bad if name in self.bad else bad

    def _text(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The batch as plain columns, and one to decode, with nulls in place of bytes that are not UTF-8."""
        columns, clean = [], []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            column = plain_column(column)
            columns.append(column)
            clean.append(column)
            try:
                column.validate(full=True)
            except pa.ArrowInvalid:
                columns[-1] = column.view(pa.binary())
                values = columns[-1].to_pylist()
                bad = np.array([not _is_utf8(value) for value in values])
                self._note(name, bad)
                clean[-1] = pa.array([None if b else value for b, value in zip(bad, values, strict=True)], pa.string())
        names = batch.schema.names
        return pa.RecordBatch.from_arrays(columns, names=names), pa.RecordBatch.from_arrays(clean, names=names)


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return f"bytes that are not UTF-8: {shorten(value.decode('latin-1'))}"
    if isinstance(value, str):
        return shorten(value)
    return "nothing" if value is None else textwrap.shorten(str(value), 60, placeholder=" …")


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
