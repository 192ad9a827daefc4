"""The two layouts in which MovieLens-100k is handed around, as plain records.

GroupLens: ``u.data`` (tabs), ``u.user`` and ``u.item`` (``|``, Latin-1, 19 genre flags).
RecBole's atomic files: ``*.inter``, ``*.user``, ``*.item`` with a typed header (``user_id:token``), found by name.
"""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from trainer.data.block import RejectedLine, shorten
from trainer.data.errors import DataError

_Record = TypeVar("_Record")
_RATING_COLUMNS: Final = ("user_id", "item_id", "rating", "timestamp")
_GENRES: Final = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip


class Rating(NamedTuple):
    """One interaction; ``timestamp_s`` is Unix time."""

    user_id: str
    item_id: str
    rating: float
    timestamp_s: int


class User(NamedTuple):
    """Side features of a user; ``None`` or empty is missing."""

    age: int | None
    gender: str
    occupation: str
    zip_code: str


class Item(NamedTuple):
    """Side features of a film; ``genres`` may be empty."""

    year: int | None
    genres: tuple[str, ...]


NO_USER: Final = User(None, "", "", "")
NO_ITEM: Final = Item(None, ())


class MovieLensFiles(NamedTuple):
    """Everything in one directory; ``rejected`` are interaction lines that could not be parsed."""

    ratings: list[Rating]
    users: dict[str, User]
    items: dict[str, Item]
    rejected: list[RejectedLine]


def read_movielens(directory: str) -> MovieLensFiles:
    """Parses the directory in whichever layout it is.

    Raises:
        DataError: no known layout, a file or column missing, a malformed line in a side file.
    """
    inter = sorted(glob.glob(os.path.join(glob.escape(directory), "*.inter")))
    if inter:
        stem = inter[0].removesuffix(".inter")
        ratings, rejected = _ratings(_atomic(inter[0], _RATING_COLUMNS))
        users = _side(_atomic(f"{stem}.user", ("user_id", "age", "gender", "occupation", "zip_code")), _user)
        items = _side(_atomic(f"{stem}.item", ("item_id", "release_year", "class")), _recbole_item)
    elif os.path.exists(path := os.path.join(directory, "u.data")):
        ratings, rejected = _ratings(_Sheet(path, _read_lines(path, "utf-8"), 1, "\t", 4, (0, 1, 2, 3)))
        path = os.path.join(directory, "u.user")
        users = _side(_Sheet(path, _read_lines(path, "utf-8"), 1, "|", 5, (0, 1, 2, 3, 4)), _user)
        path = os.path.join(directory, "u.item")
        width = 5 + len(_GENRES)
        columns = (0, 2, *range(5, width))
        items = _side(_Sheet(path, _read_lines(path, "latin-1"), 1, "|", width, columns), _grouplens_item)
    else:
        raise DataError(directory, "holds neither RecBole's *.inter nor GroupLens' u.data; is data.format right?")
    return MovieLensFiles(ratings, users, items, rejected)


class _Sheet(NamedTuple):
    """Lines of one file and which of their fields are wanted."""

    path: str
    lines: list[str]
    first_line: int
    separator: str
    width: int
    columns: tuple[int, ...]

    def fields(self, line: str) -> list[str] | None:
        """The wanted fields; ``None`` when the line has the wrong number of fields."""
        fields = line.split(self.separator)
        return [fields[column] for column in self.columns] if len(fields) == self.width else None


def _read_lines(path: str, encoding: str) -> list[str]:
    try:
        with open(path, encoding=encoding, errors="backslashreplace", newline="\n") as file:
            lines = file.read().removesuffix("\n").split("\n")
    except FileNotFoundError as error:
        raise DataError(path, "no such file; MovieLens needs its interactions, users and items") from error
    if lines == [""]:
        raise DataError(path, "is empty")
    return [line.removesuffix("\r") for line in lines]


def _atomic(path: str, wanted: Sequence[str]) -> _Sheet:
    """A RecBole file: the first line is its typed header."""
    header, *lines = _read_lines(path, "utf-8")
    names = [field.partition(":")[0] for field in header.split("\t")]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise DataError(
            path, f"line 1 names the columns {names}; {missing} are missing (typed header, as in user_id:token)"
        )
    return _Sheet(path, lines, 2, "\t", len(names), tuple(names.index(name) for name in wanted))


def _ratings(sheet: _Sheet) -> tuple[list[Rating], list[RejectedLine]]:
    ratings: list[Rating] = []
    rejected: list[RejectedLine] = []
    for number, line in enumerate(sheet.lines, start=sheet.first_line):
        fields = sheet.fields(line)
        if fields is None:
            found = f"{line.count(sheet.separator) + 1} columns" if line.strip() else "an empty line"
            rejected.append(RejectedLine(sheet.path, number, "line", found, f"{sheet.width} tab-separated columns"))
            continue
        problem = _rating_problem(fields)
        if problem is None:
            ratings.append(Rating(fields[0], fields[1], float(fields[2]), int(float(fields[3]))))
        else:
            at, expected = problem
            rejected.append(RejectedLine(sheet.path, number, _RATING_COLUMNS[at], shorten(fields[at]), expected))
    return ratings, rejected


def _rating_problem(fields: Sequence[str]) -> tuple[int, str] | None:
    """(column, expected) of the first malformed field."""
    for at in (0, 1):
        if not fields[at]:
            return at, "an id"
    if not math.isfinite(_number(fields[2])):
        return 2, "a rating (a finite number)"
    if not 0 <= _number(fields[3]) < 2**40:
        return 3, "Unix time in seconds"
    return None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _side(sheet: _Sheet, parse: Callable[[Sequence[str]], _Record]) -> dict[str, _Record]:
    records: dict[str, _Record] = {}
    for number, line in enumerate(sheet.lines, start=sheet.first_line):
        fields = sheet.fields(line)
        if fields is None:
            raise DataError(sheet.path, f"line {number} does not have {sheet.width} columns: {shorten(line)}")
        records[fields[0]] = parse(fields[1:])
    return records


def _user(fields: Sequence[str]) -> User:
    age, gender, occupation, zip_code = fields
    return User(int(age) if age.isascii() and age.isdigit() else None, gender, occupation, zip_code)


def _recbole_item(fields: Sequence[str]) -> Item:
    year, genres = fields
    return Item(_year(year), tuple(genres.split()))


def _grouplens_item(fields: Sequence[str]) -> Item:
    released, *flags = fields
    genres = tuple(genre for genre, flag in zip(_GENRES, flags, strict=True) if flag == "1")
    return Item(_year(released[-4:]), genres)


def _year(text: str) -> int | None:
    return int(text) if len(text) == 4 and text.isascii() and text.isdigit() else None
