"""A user's own tables: CSV, TSV and Parquet with a column map."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.config import ColumnsConfig, DataConfig, ListConfig
from trainer.data.block import MISSING, RawBlock
from trainer.data.dataset import open_dataset
from trainer.data.errors import DataError

COLUMNS = ColumnsConfig(
    label="click",
    dense=("age", "price"),
    categorical=("user", "city"),
    lists={"genres": ListConfig(weights="shares"), "tags": ListConfig()},
)
Row = dict[str, Any]


def random_rows(count: int) -> list[Row]:
    rng = random.Random(3)

    def row() -> Row:
        genres = [rng.choice(["Action", "Children's", "é", "7"]) for _ in range(rng.randint(0, 3))]
        return {
            "click": rng.randint(0, 1),
            "unused": "x",
            "age": rng.choice([None, rng.randint(-5, 99)]),
            "price": rng.choice([None, rng.uniform(-2, 1e6)]),
            "user": rng.choice([None, 0, 7, 2**32 - 1, 2**32, 2**40, -3]),
            "city": rng.choice([None, "Oslo", "São Paulo, SP", 'the "Hague"', "007", "7"]),
            "genres": genres,
            "shares": [rng.choice([0.25, 1.0, 2.5]) for _ in genres],
            "tags": [rng.randint(0, 9) for _ in range(rng.randint(0, 2))],
        }

    return [row() for _ in range(count)]


def as_text(rows: list[Row], delimiter: str, quoted: bool, header: bool = True) -> str:
    def cell(value: Any) -> str:
        text = "|".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
        if quoted and any(mark in text for mark in (delimiter, '"')):
            return '"' + text.replace('"', '""') + '"'
        return text

    lines = [delimiter.join(rows[0])] if header else []
    return "".join(line + "\n" for line in [*lines, *(delimiter.join(map(cell, row.values())) for row in rows)])


def read(cfg: DataConfig, block_rows: int = 7) -> list[RawBlock]:
    dataset = open_dataset(cfg)
    return [b for s in dataset.plan_splits().train for b in dataset.read(s, ((s.row_start, s.row_end),), block_rows)]


def samples(blocks: list[RawBlock]) -> list[tuple[Any, ...]]:
    """(label, dense, one-hot values, genres, weights, tags) of every row."""
    found = []
    for block in blocks:
        assert isinstance(block.categories, list) and block.weights is not None
        offsets = [np.concatenate(([0], np.cumsum(lengths))) for _, lengths in block.categories]

        def part(feature: int, row: int, values: Any, offsets: list[Any] = offsets) -> list[Any]:
            return values[offsets[feature][row] : offsets[feature][row + 1]].tolist()

        for row in range(block.rows):
            ids = [part(f, row, values) for f, (values, _) in enumerate(block.categories)]
            found.append((float(block.labels[row]), block.dense[row].tolist(), ids, part(2, row, block.weights[2])))
    return found


ROWS = random_rows(60)


def write_parquet(path: Path, rows: list[Row], **types: pa.DataType) -> None:
    columns = {name: pa.array([row[name] for row in rows], types.get(name)) for name in rows[0]}
    pq.write_table(pa.table(columns), path, row_group_size=16)


def config(format: Any, path: Path, **changes: Any) -> DataConfig:
    given: dict[str, Any] = {"columns": COLUMNS, "eval_fraction": 0, "rows_per_split": 10, **changes}
    return DataConfig(format=format, train=str(path), **given)


def test_parquet_values(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ROWS)
    found = samples(read(config("parquet", tmp_path)))
    assert len(found) == 60
    known: dict[Any, int] = {}
    for row, (label, dense, ids, shares) in zip(ROWS, found, strict=True):
        assert label == row["click"]
        expected = [math.copysign(math.log1p(abs(v)), v) if v else 0.0 for v in (row["age"], row["price"])]
        np.testing.assert_allclose(dense, expected, rtol=1e-6)
        user, city, genres, tags = ids
        if row["user"] is None or 0 <= row["user"] < 2**32:
            assert user == [MISSING if row["user"] is None else row["user"]]
        assert (city == [MISSING]) == (row["city"] is None)
        assert city != [7] or row["city"] == "7"
        assert tags == row["tags"] and shares == row["shares"] and len(genres) == len(row["genres"])
        for text, value in zip([str(row["user"]), row["city"], *row["genres"]], [*user, *city, *genres], strict=True):
            if text not in (None, "None"):
                assert known.setdefault(text, value) == value
    assert len(set(known.values())) == len(known)


@pytest.mark.parametrize(("format", "delimiter"), [("csv", ","), ("csv", ";"), ("tsv", "\t")])
@pytest.mark.parametrize("header", [True, False])
def test_text_equals_parquet(tmp_path: Path, format: str, delimiter: str, header: bool) -> None:
    write_parquet(tmp_path / "a.parquet", ROWS, user=pa.int64())
    text = as_text(ROWS, delimiter, format == "csv", header)
    (tmp_path / "b.txt").write_text(text, encoding="utf-8")
    names = () if header else tuple(ROWS[0])
    columns = COLUMNS.model_copy(update={"header": header, "names": names, "delimiter": delimiter})
    whole = samples(read(config("parquet", tmp_path / "a.parquet")))
    blocks = read(config(format, tmp_path / "b.txt", columns=columns))
    got = samples(blocks)
    assert [block.rejected for block in blocks if block.rejected] == []
    for one, other in zip(got, whole, strict=True):
        np.testing.assert_allclose(one[1], other[1], rtol=1e-6)
        assert (one[0], one[2], one[3]) == (other[0], other[2], other[3])


def test_columns_by_position_and_compressed_text(tmp_path: Path) -> None:
    text = "1,Oslo,3\n0,,4\n"
    with pa.output_stream(str(tmp_path / "a.csv.zst"), compression="zstd") as file:
        file.write(text.encode())
    columns = ColumnsConfig(label="0", dense=("2",), categorical=("1",), header=False, dense_transform="none")
    (block,) = read(config("csv", tmp_path, columns=columns))
    assert block.labels.tolist() == [1, 0]
    assert block.dense.tolist() == [[3], [4]]
    assert isinstance(block.categories, np.ndarray) and block.categories[0, 1] == MISSING


@pytest.mark.parametrize("kind", ["dictionary", "large", "binary", "float ids", "bool label"])
def test_other_types_of_parquet_columns(tmp_path: Path, kind: str) -> None:
    plain = pa.table({"y": [1, 0, 1], "u": ["7", None, "b"], "n": pa.array([1, 2, None], pa.int64())})
    other = {
        "dictionary": lambda: plain.set_column(1, "u", plain["u"].dictionary_encode()),
        "large": lambda: plain.set_column(1, "u", plain["u"].cast(pa.large_string())),
        "binary": lambda: plain.set_column(1, "u", plain["u"].cast(pa.binary())),
        "float ids": lambda: plain.set_column(2, "n", plain["n"].cast(pa.float64())),
        "bool label": lambda: plain.set_column(0, "y", plain["y"].cast(pa.bool_())),
    }[kind]()
    columns = ColumnsConfig(label="y", categorical=("u", "n"))
    blocks = []
    for name, table in (("a.parquet", plain), ("b.parquet", other)):
        pq.write_table(table, tmp_path / name)
        blocks += read(config("parquet", tmp_path / name, columns=columns))
    one, two = blocks
    assert not two.rejected
    assert np.array_equal(one.categories, two.categories)
    assert one.labels.tolist() == two.labels.tolist() == [1, 0, 1]


BAD = [
    ("2,1,u,a,1\n", "y", "'2'", "0 or 1"),
    (",1,u,a,1\n", "y", "''", "0 or 1"),
    ("1,x,u,a,1\n", "n", "'x'", "a finite number"),
    ("1,inf,u,a,1\n", "n", "'inf'", "a finite number"),
    ("1,1,u,a|,1|2\n", "g", "'a|'", "ids and as many finite numbers"),
    ("1,1,u,a|b,1\n", "g", "with weights '1'", "as many finite numbers"),
    ("1,1,u,a,nan\n", "g", "with weights 'nan'", "as many finite numbers"),
    ("1,1,u,a\n", "line", "4 columns", "5 columns separated by ','"),
    ("1,1,u,a,1,2\n", "line", "6 columns", "5 columns separated by ','"),
    ("\n", "line", "an empty line", "5 columns"),
    ('1,1,"u,a,1\n', "line", "not closed", "close on their line"),
    ("1,1,\udcff,a,1\n", "u", "not UTF-8", "text or a whole number"),
]


@pytest.mark.parametrize(("line", "column", "found", "expected"), BAD)
@pytest.mark.parametrize("header", [True, False])
def test_a_bad_line_is_set_apart_with_its_place(
    tmp_path: Path, line: str, column: str, found: str, expected: str, header: bool
) -> None:
    good = "1,{},u,a|b,1|2\n"
    text = ("y,n,u,g,w\n" if header else "") + good.format(1) + line + good.format(2)
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    columns = ColumnsConfig(
        label="y", dense=("n",), categorical=("u",), lists={"g": ListConfig(weights="w")}, dense_transform="none",
        header=header, names=() if header else ("y", "n", "u", "g", "w"),
    )  # fmt: skip
    (block,) = read(config("csv", path, columns=columns))
    assert block.dense.tolist() == [[1], [2]]
    assert block.row_index is not None and block.row_index.tolist() == [0, 2]
    (rejected,) = block.rejected
    assert (rejected.path, rejected.line, rejected.column) == (str(path), 2 + header, column)
    assert found in rejected.found
    assert expected in rejected.expected


def test_many_bad_lines_keep_exact_numbers(tmp_path: Path) -> None:
    rng = random.Random(1)
    lines = [rng.choice([f"1,{i},u,a,1\n", *(bad for bad, *_ in BAD)]) for i in range(200)]
    path = tmp_path / "a.csv"
    path.write_bytes("".join(["y,n,u,g,w\n", *lines]).encode("utf-8", "surrogateescape"))
    columns = ColumnsConfig(
        label="y", dense=("n",), categorical=("u",), lists={"g": ListConfig(weights="w")}, dense_transform="none"
    )
    blocks = read(config("csv", path, columns=columns), 9)
    bad = {line for line, *_ in BAD}
    good = [i for i, line in enumerate(lines) if line not in bad]
    assert [
        i for b in blocks for i in (range(b.line_start, b.line_end) if b.row_index is None else b.row_index)
    ] == good
    assert [value for block in blocks for value in block.dense[:, 0]] == good
    assert [line.line - 2 for b in blocks for line in b.rejected] == [i for i in range(200) if lines[i] in bad]


def test_bad_values_of_parquet(tmp_path: Path) -> None:
    table = pa.table({"y": [0, 1, 2, 1], "n": [1.0, math.inf, 2.0, 3.0], "u": [1.0, 2.0, 3.0, 1.5]})
    pq.write_table(table, tmp_path / "a.parquet")
    columns = ColumnsConfig(label="y", dense=("n",), categorical=("u",))
    (block,) = read(config("parquet", tmp_path, columns=columns))
    assert [(line.line, line.column, line.found) for line in block.rejected] == [
        (2, "n", "inf"), (3, "y", "2"), (4, "u", "1.5"),
    ]  # fmt: skip
    assert block.rows == 1


def test_a_header_where_none_was_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,u\n1,a\n")
    columns = ColumnsConfig(label="0", categorical=("1",), header=False)
    (block,) = read(config("csv", tmp_path, columns=columns))
    (rejected,) = block.rejected
    assert (rejected.line, rejected.found) == (1, "'y'")
    assert "looks like a header: set data.columns.header=true" in rejected.expected


def test_what_does_not_fit_the_map(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"

    def plan(columns: ColumnsConfig) -> None:
        open_dataset(config("csv", path, columns=columns)).plan_splits()

    columns = ColumnsConfig(label="click", categorical=("user",))
    path.write_text("clicks,user\n1,a\n")
    with pytest.raises(DataError, match=r"no column 'click'.*did you mean 'clicks'.*it has clicks, user"):
        plan(columns)
    path.write_text("click,user,user\n1,a,b\n")
    with pytest.raises(DataError, match="more than once"):
        plan(columns)
    path.write_text("click,user\n")
    with pytest.raises(DataError, match="a header but no rows"):
        plan(columns)
    path.write_text("")
    with pytest.raises(DataError, match="is empty"):
        plan(columns)
    path.write_text("1,a,b\n")
    with pytest.raises(DataError, match=r"3 columns, data\.columns\.names has 2"):
        plan(columns.model_copy(update={"header": False, "names": ("click", "user")}))
    pq.write_table(pa.table({"click": [1], "user": [[1]]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="'user' has type list"):
        read(config("parquet", tmp_path / "a.parquet", columns=columns))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "csv"}, "needs data.columns"),
        ({"format": "criteo_tsv", "columns": COLUMNS}, "is for data.format parquet, csv and tsv"),
        ({"format": "csv", "columns": ColumnsConfig(label="y", dense=("a",))}, "must name at least one column"),
        ({"format": "csv", "columns": ColumnsConfig(categorical=("a",))}, "label is not set"),
        ({"format": "movielens", "unlabeled": True}, "data.unlabeled is not for data.format=movielens"),
        ({"format": "movielens", "predict": "ml"}, "data.predict is not for data.format=movielens"),
    ],
)
def test_settings_that_contradict_each_other(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataConfig(**settings)
    with pytest.raises(ValueError, match="more than once"):
        ColumnsConfig(label="y", dense=("y",))
    with pytest.raises(ValueError, match="header=false"):
        ColumnsConfig(names=("a",))


def test_unlabeled_tables(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user\na\nb\n")
    cfg = config("csv", tmp_path, columns=ColumnsConfig(categorical=("user",)), unlabeled=True)
    (block,) = read(cfg)
    assert block.labels.tolist() == [0, 0]
    assert open_dataset(cfg).schema.labeled is False
