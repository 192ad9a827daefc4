"""Vocabularies: which values of a feature have a row of their own. Kept with the model, one Parquet file a feature."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.data.block import I64, RESERVED, U64
from trainer.data.errors import DataError


@dataclass(frozen=True)
class Vocabulary:
    """The V kept values of one feature, ascending. Value i has row i+1; row 0 is shared by all others.

    Attributes:
        values: V uint64.
        counts: V int64, how often each was seen.
    """

    values: U64
    counts: I64

    @property
    def rows(self) -> int:
        """Table rows: one per value and the out-of-vocabulary row 0."""
        return int(self.values.size) + 1

    def at_least(self, min_count: int) -> Vocabulary:
        """The values seen ``min_count`` times or more."""
        kept = self.counts >= min_count
        return Vocabulary(self.values[kept], self.counts[kept])


@dataclass(frozen=True)
class VocabularyEncoder:
    """Gives each of V sorted, distinct values its own row 1…V; every other value gets row 0."""

    values: U64

    def __post_init__(self) -> None:
        if self.values.size and (not (self.values[1:] > self.values[:-1]).all() or self.values[-1] == RESERVED):
            raise ValueError("vocabulary values must be ascending, distinct and below 2**64 - 1")
        if self.values.size >= 2**31 - 1:
            raise ValueError(f"a vocabulary of {self.values.size} values is too large; raise categories.min_count")

    @property
    def rows(self) -> int:
        """Table rows V+1."""
        return int(self.values.size) + 1

    def encode(self, values: U64) -> I64:
        """Rows of ``values``, same shape, by binary search. ``FeatureEncoders`` has the fast way for whole batches."""
        if not self.values.size:
            return np.zeros(values.shape, dtype=np.int64)
        at = np.searchsorted(self.values, values)
        found = self.values[np.minimum(at, self.values.size - 1)] == values
        return np.where(found, at + 1, 0)


def save_vocabularies(vocabularies: dict[str, Vocabulary], directory: str | os.PathLike[str]) -> None:
    """Writes ``<directory>/<feature>.parquet`` with the columns value (uint64), count and row (int64)."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    for name, vocabulary in vocabularies.items():
        rows = np.arange(1, vocabulary.rows, dtype=np.int64)
        table = pa.table({"value": vocabulary.values, "count": vocabulary.counts, "row": rows})
        part = folder / f".{name}.parquet.part"
        pq.write_table(table, part)
        part.replace(folder / f"{name}.parquet")  # a reader never sees half a file


def load_vocabularies(directory: str | os.PathLike[str]) -> dict[str, Vocabulary]:
    """Reads back what ``save_vocabularies`` wrote; an empty directory gives an empty mapping.

    Raises:
        DataError: the directory or a file cannot be read, or rows are not 1…V in ascending order of values.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise DataError(str(folder), "no such directory; it should hold one vocabulary file per feature")
    vocabularies: dict[str, Vocabulary] = {}
    for path in sorted(folder.glob("[!.]*.parquet")):
        try:
            table = pq.read_table(path, columns=["value", "count", "row"])
        except (pa.ArrowException, OSError, KeyError) as error:
            raise DataError(str(path), f"is not a vocabulary file ({error})") from error
        values = table["value"].to_numpy().astype(np.uint64)
        if (
            not np.array_equal(table["row"].to_numpy(), np.arange(1, len(values) + 1))
            or (values[1:] <= values[:-1]).any()
        ):
            raise DataError(str(path), "is not a vocabulary file: rows must be 1, 2, … in ascending order of values")
        vocabularies[path.stem] = Vocabulary(values, table["count"].to_numpy().astype(np.int64))
    return vocabularies
