"""A data set: what the coordinator cuts into splits and readers read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainer.config import DataConfig
from trainer.data.block import RawBlock
from trainer.data.criteo_tsv import CriteoTsv
from trainer.data.errors import DataError
from trainer.data.format import Format
from trainer.data.index import FileIndex, cut
from trainer.data.movielens import MovieLens
from trainer.data.npy import NpyDays
from trainer.data.parquet import CriteoParquet
from trainer.data.schema import FeatureSchema
from trainer.data.split import Split
from trainer.data.table_block import TableMap
from trainer.data.table_parquet import TableParquet
from trainer.data.table_text import TableText
from trainer.data.unlabeled import UnlabeledFiles


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Training and evaluation splits, each in time order; no row is in both."""

    train: list[Split]
    eval: list[Split]
    train_rows: int
    eval_rows: int


class Dataset(Protocol):
    """A click log in time order. Picklable; ``read`` may be called by several threads at once."""

    @property
    def schema(self) -> FeatureSchema:
        """The columns of every block."""

    def plan_splits(self) -> SplitPlan:
        """Scans the files once and cuts their rows."""

    def read(self, split: Split, ranges: Sequence[tuple[int, int]], block_rows: int) -> Iterator[RawBlock]:
        """Blocks of at most ``block_rows`` input rows that cover ``ranges`` of the split exactly, in order."""


@dataclass(frozen=True)
class FileDataset:
    """Files of one format, in time order, and those to predict when it has been trained on."""

    format: Format
    train: tuple[str, ...]
    eval: tuple[str, ...] | None
    eval_fraction: float
    rows_per_split: int
    unlabeled: UnlabeledFiles | None = None

    @property
    def schema(self) -> FeatureSchema:
        """The columns of every block."""
        return self.format.schema

    def plan_splits(self) -> SplitPlan:
        """Scans every file once; without ``eval`` paths the last ``eval_fraction`` of the rows is held out."""
        train = [self.format.scan(path, self.rows_per_split) for path in self.train]
        total = sum(index.rows for index in train)
        if self.eval is not None:
            held_out = [self.format.scan(path, self.rows_per_split) for path in self.eval]
            eval_rows = sum(index.rows for index in held_out)
            return self._plan(train, held_out, total, eval_rows)
        eval_rows = round(total * self.eval_fraction)
        return self._plan(train, train, total - eval_rows, eval_rows)

    def read(self, split: Split, ranges: Sequence[tuple[int, int]], block_rows: int) -> Iterator[RawBlock]:
        """Blocks of at most ``block_rows`` input rows that cover ``ranges`` of the split exactly, in order."""
        if split.labels != "wanted" and self.unlabeled is not None:
            return self.unlabeled.format.read(split, ranges, block_rows)
        return self.format.read(split, ranges, block_rows)

    def _plan(self, train: list[FileIndex], held_out: list[FileIndex], train_rows: int, eval_rows: int) -> SplitPlan:
        if train_rows == 0:
            raise DataError(", ".join(self.train), "no rows to train on; check data.train and data.eval_fraction")
        if eval_rows == 0 and self.eval is not None:
            raise DataError(", ".join(self.eval), "no rows to evaluate on; check data.eval")
        train_splits = self._cut(train, 0, train_rows)
        skip = 0 if self.eval is not None else train_rows
        return SplitPlan(train_splits, self._cut(held_out, skip, skip + eval_rows), train_rows, eval_rows)

    def _cut(self, indexes: list[FileIndex], start: int, end: int) -> list[Split]:
        """Splits for the rows ``[start, end)`` of all files laid end to end."""
        splits: list[Split] = []
        row = 0
        for index in indexes:
            low, high = max(start - row, 0), min(end - row, index.rows)
            splits += cut(index, low, high, self.format.locate)
            row += index.rows
        return splits


def open_dataset(cfg: DataConfig) -> FileDataset:
    """The data set that ``data.*`` describes; resolves paths but reads next to nothing yet.

    Raises:
        DataError: nothing found, or a file is in both ``data.train`` and ``data.eval``.
    """
    chosen = _format(cfg)
    if not cfg.train:
        raise DataError("data.train", "is not set; give it a file, a directory or a glob")
    train = tuple(chosen.resolve(cfg.train))
    held_out = None if cfg.eval is None else tuple(chosen.resolve(cfg.eval))
    for path in set(train) & set(held_out or ()):
        raise DataError(path, "is in both data.train and data.eval; evaluation rows must not be trained on")
    unlabeled = _unlabeled(cfg, train[0]) if cfg.predict else None
    return FileDataset(chosen, train, held_out, cfg.eval_fraction, cfg.rows_per_split, unlabeled)


def _unlabeled(cfg: DataConfig, trained: str) -> UnlabeledFiles:
    chosen = _format(cfg.model_copy(update={"unlabeled": True}))
    if isinstance(chosen, TableText):
        chosen = chosen.like(trained)
    return UnlabeledFiles(chosen, tuple(chosen.resolve(cfg.predict)), cfg.rows_per_split)


def _format(cfg: DataConfig) -> Format:
    labeled, columns = not cfg.unlabeled, cfg.columns
    match cfg.format:
        case "criteo_tsv":
            return CriteoTsv(labeled)
        case "parquet":
            return TableParquet(TableMap(columns, labeled)) if columns.given else CriteoParquet(labeled)
        case "csv":
            return TableText(TableMap(columns, labeled), columns.delimiter or ",", quoted=True)
        case "tsv":
            return TableText(TableMap(columns, labeled), columns.delimiter or "\t", quoted=False)
        case "npy":
            return NpyDays(labeled, multi_hot=False)
        case "npy_multi_hot":
            return NpyDays(labeled, multi_hot=True)
        case "movielens":
            return MovieLens()
