"""What a data set's columns hold: missing fields, distinct values, and how often each value occurs when asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from trainer.data.block import I64, U64
from trainer.data.cardinality import DistinctCounts
from trainer.data.swar import Bools
from trainer.data.vocabulary import Vocabulary
from trainer.data.vocabulary_build import ValueCounter


class ColumnStats:
    """Mergeable: parts of a data set are counted apart. Constant memory but for the values that are ``counted``."""

    def __init__(self, columns: Sequence[str], counted: Sequence[str] = ()) -> None:
        """Starts empty; ``counted`` columns keep every value's count."""
        self.columns = tuple(columns)
        self.missing = dict.fromkeys(columns, 0)
        self._distinct = DistinctCounts(len(self.columns))
        self._counters = {name: ValueCounter() for name in counted}

    def add(self, name: str, values: U64, empty: Bools) -> None:
        """n values of one column, and which of them are missing; a missing value is counted as one, too."""
        self.missing[name] += int(np.count_nonzero(empty))
        self._distinct.add(self.columns.index(name), values[~empty] if empty.any() else values)
        if name in self._counters:
            self._counters[name].add(values)

    def merge(self, other: ColumnStats) -> None:
        """Adds what another part, of the same columns, has."""
        for name, count in other.missing.items():
            self.missing[name] += count
        self._distinct.merge(other._distinct)
        for name, counter in other._counters.items():
            if name in self._counters:
                whole = counter.vocabulary(1)
                self._counters[name].add_counts(whole.values, whole.counts)

    def cardinality(self, name: str) -> int:
        """About how many distinct values are not missing (standard error 1.6 %)."""
        return self._distinct.estimate(self.columns.index(name))

    def vocabularies(self, min_count: int) -> dict[str, Vocabulary]:
        """For every counted column the values seen at least ``min_count`` times."""
        return {name: counter.vocabulary(min_count) for name, counter in self._counters.items()}

    def save(self, path: Path) -> None:
        """Writes an .npz file."""
        arrays: dict[str, NDArray[np.uint8] | U64 | I64] = {
            "missing": np.array([self.missing[name] for name in self.columns], dtype=np.int64),
            "registers": self._distinct.registers,
        }
        for name, whole in self.vocabularies(1).items():
            arrays[f"values {name}"], arrays[f"counts {name}"] = whole.values, whole.counts
        with path.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path, columns: Sequence[str], counted: Sequence[str] = ()) -> Self:
        """Reads back what ``save`` wrote, the counts of ``counted`` columns only."""
        stats = cls(columns, counted)
        with np.load(path) as arrays:
            stats.missing = dict(zip(stats.columns, arrays["missing"].tolist(), strict=True))
            stats._distinct = DistinctCounts(len(stats.columns), arrays["registers"])
            for name in counted:
                stats._counters[name].add_counts(arrays[f"values {name}"], arrays[f"counts {name}"])
        return stats
