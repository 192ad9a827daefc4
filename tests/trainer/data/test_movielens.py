"""MovieLens in both layouts against a plain reading of the same records."""

from __future__ import annotations

import datetime
import math
import pickle
import random
from pathlib import Path

import numpy as np
import pytest

from trainer.config import DataConfig
from trainer.data.block import MISSING, RawBlock
from trainer.data.dataset import open_dataset
from trainer.data.errors import DataError
from trainer.data.hashing import text_value
from trainer.data.movielens import MovieLens

GENRES = ["unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama",
          "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War",
          "Western"]  # fmt: skip
RNG = random.Random(3)
USERS = {
    str(i): (RNG.randint(7, 73), RNG.choice("MF"), RNG.choice(["writer", "none"]), f"{i:03}12") for i in range(1, 9)
}
ITEMS = {
    str(i): (RNG.choice([1995, 1937, None]), sorted(RNG.sample(GENRES, i % 4), key=GENRES.index)) for i in range(1, 12)
}
RATINGS = [
    (RNG.choice(list(USERS)), RNG.choice(list(ITEMS)), RNG.randint(1, 5), RNG.randint(874724710, 874725710))
    for _ in range(60)
]


def grouplens(folder: Path) -> Path:
    folder.mkdir()
    (folder / "u.data").write_text("".join(f"{u}\t{i}\t{r}\t{t}\n" for u, i, r, t in RATINGS))
    (folder / "u.user").write_text("".join(f"{u}|{'|'.join(map(str, USERS[u]))}\n" for u in USERS))
    lines = []
    for item, (year, genres) in ITEMS.items():
        flags = "|".join(str(int(genre in genres)) for genre in GENRES)
        lines.append(f"{item}|Café {item}|{f'01-Jan-{year}' if year else ''}||http://x|{flags}\n")
    (folder / "u.item").write_text("".join(lines), encoding="latin-1")
    return folder


def recbole(folder: Path) -> Path:
    folder.mkdir()
    lines = "".join(f"{u}\t{i}\t{r}\t{t}\n" for u, i, r, t in RATINGS)
    (folder / "ml.inter").write_text("user_id:token\titem_id:token\trating:float\ttimestamp:float\n" + lines)
    lines = "".join(f"{u}\t{a}\t{g}\t{o}\t{z}\n" for u, (a, g, o, z) in USERS.items())
    header = "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n"
    (folder / "ml.user").write_text(header + lines)
    lines = "".join(f"{i}\tCafé\t{year or 'unknown'}\t{' '.join(genres)}\n" for i, (year, genres) in ITEMS.items())
    header = "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
    (folder / "ml.item").write_text(header + lines, encoding="utf-8")
    return folder


def plain_rows() -> list[tuple[float, list[float], dict[str, list[int]]]]:
    rows = []
    for at, (user, item, rating, stamp) in enumerate(ordered := sorted(RATINGS, key=lambda row: row[3])):
        age, gender, occupation, zip_code = USERS[user]
        year, genres = ITEMS[item]
        when = datetime.datetime.fromtimestamp(stamp, datetime.UTC)
        before = ordered[:at]
        counts = [
            age,
            when.year - year if year else 0,
            sum(r[0] == user for r in before),
            sum(r[1] == item for r in before),
        ]
        bucket = next((i for i, edge in enumerate([18, 25, 35, 45, 50, 56]) if age < edge), 6)
        sparse = {
            "user_id": [int(user)], "item_id": [int(item)], "age_bucket": [bucket], "gender": [text_value(gender)],
            "occupation": [text_value(occupation)], "zip3": [int(zip_code[:3])], "release_year": [year or MISSING],
            "hour": [when.hour], "weekday": [when.weekday()], "genres": [text_value(genre) for genre in genres],
        }  # fmt: skip
        rows.append((float(rating >= 4), [math.log1p(count) for count in counts], sparse))
    return rows


def unpack(block: RawBlock) -> list[tuple[float, list[float], dict[str, list[int]]]]:
    assert isinstance(block.categories, list)
    rows = []
    for i in range(block.rows):
        sparse = {}
        for spec, (values, lengths) in zip(MovieLens.schema.sparse, block.categories, strict=True):
            start = int(lengths[:i].sum())
            sparse[spec.name] = values[start : start + int(lengths[i])].tolist()
        rows.append((float(block.labels[i]), block.dense[i].tolist(), sparse))
    return rows


@pytest.mark.parametrize("layout", [grouplens, recbole])
def test_both_layouts_equal_a_plain_parse(tmp_path: Path, layout: object) -> None:
    folder = layout(tmp_path / "ml")  # type: ignore[operator]
    cfg = DataConfig(format="movielens", train=str(folder), eval_fraction=0.2, rows_per_split=25)
    dataset = pickle.loads(pickle.dumps(open_dataset(cfg)))
    plan = dataset.plan_splits()
    assert (plan.train_rows, plan.eval_rows) == (48, 12)
    splits = plan.train + plan.eval
    blocks = [b for s in splits for b in dataset.read(s, ((s.row_start, s.row_end),), 7)]
    got = [row for block in blocks for row in unpack(block)]
    expected = plain_rows()
    assert [(row[0], row[2]) for row in got] == [(row[0], row[2]) for row in expected]
    np.testing.assert_allclose([row[1] for row in got], [row[1] for row in expected], rtol=1e-6)
    assert any(not row[2]["genres"] for row in got) and any(len(row[2]["genres"]) == 3 for row in got)


def test_bad_interactions_come_first_and_are_counted(tmp_path: Path) -> None:
    folder = grouplens(tmp_path / "ml")
    good = (folder / "u.data").read_text().splitlines()
    bad = ["1\t2\t3", "1\t2\tmany\t874724710", "1\t2\t3\tnever", "\t2\t3\t874724710", ""]
    (folder / "u.data").write_text("\n".join([*good[:10], *bad, *good[10:]]) + "\n")
    dataset = open_dataset(DataConfig(format="movielens", train=str(folder), eval_fraction=0.2))
    plan = dataset.plan_splits()
    assert plan.train_rows + plan.eval_rows == 65
    blocks = [b for s in plan.train + plan.eval for b in dataset.read(s, ((s.row_start, s.row_end),), 3)]
    rejected = [line for block in blocks for line in block.rejected]
    columns = [(11, "line"), (12, "rating"), (13, "timestamp"), (14, "user_id"), (15, "line")]
    assert [(line.line, line.column) for line in rejected] == columns
    assert [row[2] for block in blocks for row in unpack(block)] == [row[2] for row in plain_rows()]
    index = [i for b in blocks for i in (range(b.line_start, b.line_end) if b.row_index is None else b.row_index)]
    assert index == list(range(5, 65))


def test_unknown_users_and_items_have_missing_features(tmp_path: Path) -> None:
    folder = grouplens(tmp_path / "ml")
    (folder / "u.data").write_text("999\t888\t5\t874724710\n")
    dataset = open_dataset(DataConfig(format="movielens", train=str(folder), eval_fraction=0))
    (split,) = dataset.plan_splits().train
    ((label, _, sparse),) = unpack(next(iter(dataset.read(split, ((0, 1),), 5))))
    assert label == 1.0
    assert (sparse["user_id"], sparse["gender"], sparse["release_year"], sparse["genres"]) == (
        [999],
        [MISSING],
        [MISSING],
        [],
    )


def test_incomplete_directories_are_errors(tmp_path: Path) -> None:
    def plan(folder: Path) -> None:
        open_dataset(DataConfig(format="movielens", train=str(folder))).plan_splits()

    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"neither RecBole's .* nor GroupLens'"):
        plan(tmp_path / "none")
    folder = grouplens(tmp_path / "a")
    with pytest.raises(DataError, match="is a file"):
        plan(folder / "u.data")
    (folder / "u.item").unlink()
    with pytest.raises(DataError, match="no such file"):
        plan(folder)
    folder = recbole(tmp_path / "b")
    text = (folder / "ml.user").read_text()
    (folder / "ml.user").write_text(text.replace("gender:token", "sex:token"))
    with pytest.raises(DataError, match=r"\['gender'\] are missing"):
        plan(folder)
    (folder / "ml.user").write_text(text + "12\t30\n")
    with pytest.raises(DataError, match="line 10 does not have 5 columns"):
        plan(folder)
