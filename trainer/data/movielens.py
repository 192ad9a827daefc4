"""MovieLens-100k as a click log: rating ≥ 4 is a click, genres are a true multi-hot feature."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from trainer.data.block import F32, I64, MISSING, U64, RawBlock, RejectedLine, squash_dense
from trainer.data.errors import DataError
from trainer.data.hashing import text_value
from trainer.data.index import FileIndex
from trainer.data.movielens_files import NO_ITEM, NO_USER, Item, Rating, User, read_movielens
from trainer.data.paths import resolve_directories
from trainer.data.schema import FeatureSchema, FeatureSpec
from trainer.data.split import Split

_ONE_HOT: Final = (
    "user_id", "item_id", "age_bucket", "gender", "occupation", "zip3", "release_year", "hour", "weekday",
)  # fmt: skip
_SCHEMA: Final = FeatureSchema(
    ("age", "item_age_years", "user_ratings_before", "item_ratings_before"),
    (*(FeatureSpec(name, multi_hot=False) for name in _ONE_HOT), FeatureSpec("genres", multi_hot=True)),
)
_AGE_EDGES: Final = (18, 25, 35, 45, 50, 56)
_YEAR_S: Final = 31_556_952
_CLICK_RATING: Final = 4.0


@dataclass(frozen=True)
class MovieLens:
    """Directories in RecBole's atomic layout or GroupLens' own. Stateless; each process keeps what it has parsed.

    Rows are interactions in time order (ties in file order). Lines that cannot be parsed have no time and come first,
    so the held-out end never contains them.
    """

    schema = _SCHEMA
    locate = None
    first_line = None

    def resolve(self, patterns: str | Sequence[str]) -> list[str]:
        """Directories behind ``patterns``."""
        return resolve_directories(patterns)

    def scan(self, path: str, rows_per_split: int) -> FileIndex:
        """Parses the directory."""
        table = _load(path)
        return FileIndex(path, table.rows, tuple(range(0, table.rows, rows_per_split)))

    def has_label(self, path: str) -> bool:
        """Ratings are the labels."""
        return True

    def read(self, split: Split, ranges: Sequence[tuple[int, int]], block_rows: int) -> Iterator[RawBlock]:
        """Blocks of at most ``block_rows`` rows that cover ``ranges`` of the split exactly."""
        table = _load(split.path)
        if table.rows < split.row_end:
            raise DataError(split.path, f"has {table.rows} rows, {split.row_end} were planned: the data has changed")
        for start, end in ranges:
            for row in range(start, end, block_rows):
                yield table.block(row, min(row + block_rows, end))


class _Table(NamedTuple):
    dense: F32
    labels: F32
    one_hot: U64
    genres: U64
    genre_offsets: I64
    rejected: list[RejectedLine]

    @property
    def rows(self) -> int:
        return len(self.rejected) + int(self.labels.shape[0])

    def block(self, start: int, end: int) -> RawBlock:
        bad = len(self.rejected)
        low, high = max(start - bad, 0), max(end - bad, 0)
        offsets = self.genre_offsets[low : high + 1]
        ones = np.ones(high - low, dtype=np.int64)
        categories = [(values[low:high], ones) for values in self.one_hot]
        categories.append((self.genres[offsets[0] : offsets[-1]], np.diff(offsets)))
        return RawBlock(
            self.dense[low:high],
            self.labels[low:high],
            categories,
            start,
            end,
            None if start >= bad else np.arange(low + bad, high + bad),
            self.rejected[start:end],
        )


def _load(path: str) -> _Table:
    return _cached_table(path, os.stat(path).st_mtime_ns) if os.path.isdir(path) else _missing(path)


def _missing(path: str) -> _Table:
    raise DataError(path, "no such directory; data.train of MovieLens names the directory with its files")


@lru_cache(maxsize=4)
def _cached_table(path: str, modified_ns: int) -> _Table:
    files = read_movielens(path)
    ratings = sorted(files.ratings, key=lambda rating: rating.timestamp_s)
    users_seen: Counter[str] = Counter()
    items_seen: Counter[str] = Counter()
    dense: list[tuple[float, ...]] = []
    categories: list[tuple[int, ...]] = []
    genres: list[int] = []
    genre_lengths = [0]
    for rating in ratings:
        user = files.users.get(rating.user_id, NO_USER)
        item = files.items.get(rating.item_id, NO_ITEM)
        item_age = 0 if item.year is None else 1970 + rating.timestamp_s // _YEAR_S - item.year
        dense.append((user.age or 0, item_age, users_seen[rating.user_id], items_seen[rating.item_id]))
        users_seen[rating.user_id] += 1
        items_seen[rating.item_id] += 1
        categories.append(_categories(rating, user, item))
        genres += (text_value(genre) for genre in item.genres)
        genre_lengths.append(len(item.genres))
    return _Table(
        squash_dense(np.array(dense, dtype=np.float64).reshape(-1, len(_SCHEMA.dense))),
        np.array([rating.rating >= _CLICK_RATING for rating in ratings], dtype=np.float32),
        np.array(categories, dtype=np.uint64).reshape(-1, len(_ONE_HOT)).T.copy(),
        np.array(genres, dtype=np.uint64),
        np.cumsum(genre_lengths),
        files.rejected,
    )


def _categories(rating: Rating, user: User, item: Item) -> tuple[int, ...]:
    age = user.age
    return (
        text_value(rating.user_id),
        text_value(rating.item_id),
        MISSING if age is None else sum(age >= edge for edge in _AGE_EDGES),
        text_value(user.gender) if user.gender else MISSING,
        text_value(user.occupation) if user.occupation else MISSING,
        text_value(user.zip_code[:3]) if user.zip_code else MISSING,
        MISSING if item.year is None else item.year,
        rating.timestamp_s // 3600 % 24,
        (rating.timestamp_s // 86400 + 3) % 7,  # 1970-01-01 was a Thursday; Monday is 0
    )
