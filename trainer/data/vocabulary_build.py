"""Vocabularies of a run: counted over the training rows, streaming, or loaded from where they were prepared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from trainer.config import DataConfig
from trainer.data.block import I64, U64
from trainer.data.categories import category_settings
from trainer.data.dataset import Dataset
from trainer.data.split import Split
from trainer.data.vocabulary import Vocabulary, load_vocabularies

_BLOCK_ROWS: Final = 4096
_MIN_PENDING: Final = 1 << 16


class ValueCounter:
    """Counts of distinct values. Memory follows the number of distinct values, not of rows.

    New counts wait until there are as many as the merged ones: each value is then merged O(log) times.
    """

    def __init__(self) -> None:
        """Starts with nothing seen."""
        self._merged = (np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64))
        self._pending: list[tuple[U64, I64]] = []
        self._pending_size = 0

    def add(self, values: U64) -> None:
        """Counts L raw values."""
        if values.size:
            self.add_counts(*_run_lengths(np.sort(values), None))

    def add_counts(self, values: U64, counts: I64) -> None:
        """Adds V distinct values that were seen ``counts`` times (another counter's result, say)."""
        self._pending.append((values, counts))
        self._pending_size += values.size
        if self._pending_size >= max(_MIN_PENDING, self._merged[0].size):
            self._merge()

    def vocabulary(self, min_count: int) -> Vocabulary:
        """The values seen at least ``min_count`` times."""
        self._merge()
        values, counts = self._merged
        kept = counts >= min_count
        return Vocabulary(values[kept], counts[kept])

    def _merge(self) -> None:
        if not self._pending:
            return
        parts = [self._merged, *self._pending]
        values = np.concatenate([part[0] for part in parts])
        counts = np.concatenate([part[1] for part in parts])
        order = np.argsort(values, kind="stable")  # stable is a radix or merge sort: quick on sorted runs
        self._merged = _run_lengths(values[order], counts[order])
        self._pending, self._pending_size = [], 0


def _run_lengths(ascending: U64, counts: I64 | None) -> tuple[U64, I64]:
    """Distinct values of a non-empty sorted array, and how often (or with which summed count) each occurs."""
    starts = np.flatnonzero(np.concatenate(([True], ascending[1:] != ascending[:-1])))
    totals = np.diff(starts, append=ascending.size) if counts is None else np.add.reduceat(counts, starts)
    return ascending[starts], totals


def build_vocabularies(dataset: Dataset, splits: Sequence[Split], cfg: DataConfig) -> dict[str, Vocabulary]:
    """Vocabularies of all features whose encoding is ``vocabulary``, from the (training) rows of ``splits``.

    Missing counts as a value. Rejected lines are left out; they are reported when they are read for training.
    """
    settings = category_settings(dataset.schema, cfg)
    counters = {name: ValueCounter() for name, chosen in settings.items() if chosen.encoding == "vocabulary"}
    if not counters:
        return {}
    for split in splits:
        for block in dataset.read(split, ((split.row_start, split.row_end),), _BLOCK_ROWS):
            for spec, column in zip(dataset.schema.sparse, block.categories, strict=True):
                if spec.name in counters:
                    counters[spec.name].add(column[0] if isinstance(column, tuple) else column)
    return {name: counter.vocabulary(settings[name].min_count) for name, counter in counters.items()}


def find_vocabularies(dataset: Dataset, splits: Sequence[Split], cfg: DataConfig) -> dict[str, Vocabulary]:
    """Those in ``data.vocabulary``, less the values below ``min_count``; without that setting they are built.

    Raises:
        DataError: ``data.vocabulary`` cannot be read.
    """
    if cfg.vocabulary is None:
        return build_vocabularies(dataset, splits, cfg)
    prepared = load_vocabularies(cfg.vocabulary)
    return {
        name: prepared[name].at_least(chosen.min_count)
        for name, chosen in category_settings(dataset.schema, cfg).items()
        if chosen.encoding == "vocabulary" and name in prepared
    }
