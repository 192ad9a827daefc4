"""Parquet rows equal text rows, as strings and as integers; damaged values; row groups."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.data.reference import check_blocks
from trainer.config import DataConfig
from trainer.data.block import RawBlock
from trainer.data.dataset import FileDataset, open_dataset
from trainer.data.errors import DataError

COLUMNS = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]


def random_lines(rows: int) -> list[str]:
    rng = random.Random(5)

    def line() -> str:
        integers = [rng.choice(["", str(rng.randint(-3, 9)), str(rng.randint(0, 2**31 - 1))]) for _ in range(13)]
        hexes = [rng.choice(["", f"{rng.getrandbits(32):08x}", "ffffffff"]) for _ in range(26)]
        return "\t".join([rng.choice("01"), *integers, *hexes])

    return [line() for _ in range(rows)]


def string_table(lines: list[str], null: bool) -> pa.Table:
    columns = zip(*(line.split("\t") for line in lines), strict=True)
    values = [[None if null and field == "" else field for field in column] for column in columns]
    return pa.table(dict(zip(COLUMNS, values, strict=True)))


def integer_table(lines: list[str], dense: pa.DataType, sparse: pa.DataType) -> pa.Table:
    columns = list(zip(*(line.split("\t") for line in lines), strict=True))
    arrays = {"label": pa.array([int(field) for field in columns[0]], pa.int8())}
    for i, name in enumerate(COLUMNS[1:], start=1):
        base, kind = (10, dense) if name[0] == "I" else (16, sparse)
        arrays[name] = pa.array([int(field, base) if field else None for field in columns[i]], kind)
    return pa.table(arrays)


def read_back(dataset: FileDataset, block_rows: int = 64) -> list[RawBlock]:
    plan = dataset.plan_splits()
    return [b for s in plan.train for b in dataset.read(s, ((s.row_start, s.row_end),), block_rows)]


LINES = random_lines(150)
TABLES = {
    "string, empty": string_table(LINES, null=False),
    "string, null": string_table(LINES, null=True),
    "large string": string_table(LINES, null=True).cast(pa.schema([(name, pa.large_string()) for name in COLUMNS])),
    "binary": string_table(LINES, null=True).cast(pa.schema([(name, pa.binary()) for name in COLUMNS])),
    "integers": integer_table(LINES, pa.int32(), pa.uint32()),
    "wide integers": integer_table(LINES, pa.int64(), pa.int64()),
    "floats, as pandas writes nulls": integer_table(LINES, pa.float64(), pa.float64()),
}
TABLES["dictionary"] = pa.table({n: TABLES["string, null"][n].dictionary_encode() for n in COLUMNS})
TABLES["other order, more columns"] = (
    TABLES["string, null"].select(COLUMNS[::-1]).append_column("day", pa.array([1] * 150))
)


@pytest.mark.parametrize("kind", list(TABLES))
def test_equals_text(tmp_path: Path, kind: str) -> None:
    pq.write_table(TABLES[kind], tmp_path / "a.parquet", row_group_size=40)
    dataset = open_dataset(DataConfig(format="parquet", train=str(tmp_path), eval_fraction=0))
    check_blocks(read_back(dataset), LINES, range(150))


def test_mixed_column_types_equal_text(tmp_path: Path) -> None:
    table, integers = TABLES["string, null"], TABLES["integers"]
    for name in ("I2", "C5", "C26"):
        table = table.set_column(COLUMNS.index(name), name, integers[name])
    pq.write_table(table, tmp_path / "a.parquet")
    check_blocks(
        read_back(open_dataset(DataConfig(format="parquet", train=str(tmp_path), eval_fraction=0))), LINES, range(150)
    )


@pytest.mark.parametrize(("group_rows", "per_split"), [(7, 20), (20, 7), (150, 10), (150, 100), (1, 1)])
def test_splits_follow_row_groups_and_cover_each_row_once(tmp_path: Path, group_rows: int, per_split: int) -> None:
    pq.write_table(TABLES["integers"], tmp_path / "part-0.parquet", row_group_size=group_rows)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part-0.parquet.crc").touch()
    cfg = DataConfig(format="parquet", train=str(tmp_path), eval_fraction=0.25, rows_per_split=per_split)
    dataset = pickle.loads(pickle.dumps(open_dataset(cfg)))
    plan = dataset.plan_splits()
    splits = plan.train + plan.eval
    assert [row for s in splits for row in range(s.row_start, s.row_end)] == list(range(150))
    assert plan.eval_rows == 38
    for split in splits:
        middle = (split.row_start + split.row_end) // 2
        ranges = ((split.row_start, middle), (middle, split.row_end))
        rows = range(split.row_start, split.row_end)
        check_blocks(dataset.read(split, ranges, 4), LINES, rows)
    if group_rows == 7:
        edges = {split.row_start for split in splits} - {plan.train_rows}
        assert all(edge % 7 == 0 for edge in edges)
        assert max(split.rows for split in splits) == 14  # two groups of 7 fit into 20 rows


def test_bad_values_are_set_apart(tmp_path: Path) -> None:
    frame = string_table(LINES[:6], null=True).to_pandas()
    frame.loc[1, "label"] = "x"
    frame.loc[2, "I3"] = "1.5"
    frame.loc[4, "C26"] = "123"
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pandas(frame), path)
    (block,) = read_back(open_dataset(DataConfig(format="parquet", train=str(path), eval_fraction=0)))
    check_blocks([block], LINES, [0, 3, 5])
    assert [(line.path, line.line, line.column, line.found) for line in block.rejected] == [
        (str(path), 2, "label", "'x'"),
        (str(path), 3, "I3", "'1.5'"),
        (str(path), 5, "C26", "'123'"),
    ]


def test_bad_integers_are_set_apart(tmp_path: Path) -> None:
    frame = pd.DataFrame({name: [1] * 6 for name in COLUMNS})
    frame["C1"] = [1, -1, 2**32, 2**32 - 1, 5, 6]
    frame["I1"] = [1, 2, 3, 4, 0.5, -7]
    frame["label"] = [0, 0, 0, 1, 1, 2]
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "a.parquet")
    (block,) = read_back(open_dataset(DataConfig(format="parquet", train=str(tmp_path), eval_fraction=0)))
    assert [(line.line, line.column, line.found) for line in block.rejected] == [
        (2, "C1", "-1"), (3, "C1", str(2**32)), (5, "I1", "0.5"), (6, "label", "2"),
    ]  # fmt: skip
    assert isinstance(block.categories, np.ndarray)
    assert block.categories[0].tolist() == [1, 2**32 - 1]


def test_files_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"

    def plan() -> None:
        open_dataset(DataConfig(format="parquet", train=str(path))).plan_splits()

    path.touch()
    with pytest.raises(DataError, match="not a readable Parquet file"):
        plan()
    pq.write_table(TABLES["integers"].drop_columns(["C3", "I1"]), path)
    with pytest.raises(DataError, match=r"lacks the columns \['I1', 'C3'\]"):
        plan()
    pq.write_table(TABLES["integers"].drop_columns(["label"]), path)
    with pytest.raises(DataError, match="unlabeled"):
        plan()
    pq.write_table(TABLES["integers"].slice(0, 0), path)
    with pytest.raises(DataError, match="no rows to train on"):
        plan()
    table = TABLES["integers"].set_column(1, "I1", pa.array([None] * 149 + [pd.Timestamp(0)]))
    pq.write_table(table, path)
    with pytest.raises(DataError, match="'I1' has type timestamp"):
        read_back(open_dataset(DataConfig(format="parquet", train=str(path))))
