"""Files to be predicted with the trained model: what is in them, looked at before training begins."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from trainer.data.errors import DataError
from trainer.data.format import Format
from trainer.data.index import FileIndex, coarser, cut
from trainer.data.split import Labels, Split

_MAX_SPLIT_ROWS: Final = 1 << 20
_SPLITS_PER_READER: Final = 8
_LOOKED_AT_ROWS: Final = 100


@dataclass(frozen=True, slots=True)
class PredictPlan:
    """Splits of all rows to predict, file after file.

    ``labeled`` files have labels that are ignored. ``first_line``: line of a file's first row, where a row is a line.
    """

    splits: tuple[Split, ...]
    files: tuple[str, ...]
    labeled: tuple[str, ...]
    rows: int
    first_line: int | None


@dataclass(frozen=True)
class UnlabeledFiles:
    """Files without labels, or with some to ignore. Picklable."""

    format: Format
    paths: tuple[str, ...]
    rows_per_split: int

    def plan(self, readers: int) -> PredictPlan:
        """Scans every file once. Splits are larger than in training (each becomes a file), but enough for ``readers``.

        Raises:
            DataError: a file cannot be read, or none of its first rows is well-formed: better now than after training.
        """
        indexes = [self.format.scan(path, self.rows_per_split) for path in self.paths]
        rows = sum(index.rows for index in indexes)
        split_rows = max(self.rows_per_split, min(_MAX_SPLIT_ROWS, rows // (readers * _SPLITS_PER_READER)))
        splits: list[Split] = []
        labeled: list[str] = []
        for index in indexes:
            labels: Labels = "absent"
            if self.format.has_label(index.path):
                labels = "ignored"
                labeled.append(index.path)
            found = self._cut(coarser(index, split_rows), labels)
            if found:
                self._check(found[0])
            splits += found
        return PredictPlan(tuple(splits), self.paths, tuple(labeled), rows, self.format.first_line)

    def _cut(self, index: FileIndex, labels: Labels) -> list[Split]:
        return [replace(split, labels=labels) for split in cut(index, 0, index.rows, self.format.locate)]

    def _check(self, first: Split) -> None:
        rows = min(_LOOKED_AT_ROWS, first.rows)
        # Readers are generators: closing one lets go of its file.
        with closing(cast(Any, self.format.read(first, ((0, rows),), rows))) as blocks:
            block = next(blocks)
        if block.rows == 0 and block.rejected:
            bad = block.rejected[0]
            raise DataError(
                first.path,
                f"none of its first {rows} rows can be predicted; line {bad.line}: {bad.column}: found {bad.found}, "
                f"expected {bad.expected}",
            )
