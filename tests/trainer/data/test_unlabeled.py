"""Files to predict: with and without labels, in every format, looked at before anything is trained."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.data.reference import GOOD_LINE, check_blocks, write_lines
from trainer.config import ColumnsConfig, DataConfig
from trainer.data.block import RawBlock
from trainer.data.dataset import FileDataset, open_dataset
from trainer.data.errors import DataError
from trainer.data.index import FileIndex, coarser
from trainer.data.unlabeled import PredictPlan

LINES = [f"{row % 2}\t{row}\t{GOOD_LINE.split(chr(9), 2)[2]}" for row in range(250)]
BARE = [line.partition("\t")[2] for line in LINES]


def planned(readers: int = 1, **settings: Any) -> tuple[FileDataset, PredictPlan]:
    dataset: FileDataset = pickle.loads(pickle.dumps(open_dataset(DataConfig(**settings))))
    assert dataset.unlabeled is not None
    return dataset, dataset.unlabeled.plan(readers)


def read(dataset: FileDataset, plan: PredictPlan, path: Path) -> list[RawBlock]:
    splits = [split for split in plan.splits if split.path == str(path)]
    return [block for s in splits for block in dataset.read(s, ((s.row_start, s.row_end),), 64)]


def test_criteo_text_with_and_without_labels(tmp_path: Path) -> None:
    train = write_lines(tmp_path / "train.tsv", LINES)
    folder = tmp_path / "predict"
    folder.mkdir()
    bare = write_lines(folder / "1.txt", BARE)
    labeled = write_lines(folder / "2.txt", ["?" + line[1:] for line in LINES])
    zipped = folder / "3.gz"
    zipped.write_bytes(gzip.compress("".join(line + "\n" for line in BARE).encode()))
    dataset, plan = planned(train=str(train), predict=str(folder), rows_per_split=60)
    assert plan.files == (str(bare), str(labeled), str(zipped)) and plan.labeled == (str(labeled),)
    assert (plan.rows, plan.first_line) == (750, 1)
    zeros = ["0" + line[1:] for line in LINES]
    for path in (bare, labeled, zipped):
        check_blocks(read(dataset, plan, path), zeros, range(250))
    assert [split.rows for split in plan.splits if split.path == str(bare)] == [120, 120, 10], "750 rows / 8, by 60"
    check_blocks([b for s in dataset.plan_splits().train for b in dataset.read(s, ((s.row_start, s.row_end),), 64)],
                 LINES, range(225))  # fmt: skip


def test_lines_of_another_width_are_rejected_either_way(tmp_path: Path) -> None:
    train = write_lines(tmp_path / "train.tsv", LINES)
    bare = write_lines(tmp_path / "bare", [BARE[0], LINES[1], BARE[2]])
    labeled = write_lines(tmp_path / "labeled", ["\xff" + LINES[0][1:], BARE[1], "x" + LINES[2][1:], LINES[3] + "z"])
    dataset, plan = planned(train=str(train), predict=(str(bare), str(labeled)))
    found = [bad for path in (bare, labeled) for block in read(dataset, plan, path) for bad in block.rejected]
    assert [(bad.path, bad.line, bad.column, bad.found) for bad in found] == [
        (str(bare), 2, "line", "40 columns"),
        (str(labeled), 2, "line", "39 columns"),
        (str(labeled), 4, "C26", "'68fd1e64z'"),
    ]
    assert "cannot be trained on" not in found[1].expected


def test_parquet_of_criteo(tmp_path: Path) -> None:
    names = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    whole = pa.table({name: [int(line.split("\t")[at], 16 if at > 13 else 10) for line in LINES]
                      for at, name in enumerate(names)})  # fmt: skip
    pq.write_table(whole, tmp_path / "train.parquet")
    pq.write_table(whole.drop_columns("label"), tmp_path / "bare.parquet", row_group_size=50)
    settings: dict[str, Any] = {"format": "parquet", "train": str(tmp_path / "train.parquet"), "rows_per_split": 50}
    both = (str(tmp_path / "bare.parquet"), str(tmp_path / "train.parquet"))
    dataset, plan = planned(**settings, predict=both)
    assert plan.labeled == both[1:] and plan.first_line is None
    for path in both:
        check_blocks(read(dataset, plan, Path(path)), ["0" + line[1:] for line in LINES], range(250))


@pytest.mark.parametrize("names", [(), ("y", "age", "user")], ids=["by position", "by name"])
def test_text_without_a_header_may_leave_out_the_label(tmp_path: Path, names: tuple[str, ...]) -> None:
    (tmp_path / "train.csv").write_text("1,0.5,a\n0,2,b\n")
    (tmp_path / "labeled.csv").write_text("none,0.5,a\n,2,b\n")
    (tmp_path / "bare.csv").write_text("0.5,a\n2,b\n")
    label, age, user = names or ("0", "1", "2")
    columns = ColumnsConfig(
        label=label, dense=(age,), categorical=(user,), header=False, names=names, dense_transform="none"
    )
    settings: dict[str, Any] = {"format": "csv", "train": str(tmp_path / "train.csv"), "columns": columns}
    both = [str(tmp_path / name) for name in ("labeled.csv", "bare.csv")]
    dataset, plan = planned(**settings, predict=tuple(both))
    assert plan.labeled == (both[0],) and plan.first_line == 1
    first, second = (read(dataset, plan, Path(path))[0] for path in both)
    np.testing.assert_array_equal(first.dense, [[0.5], [2.0]])
    np.testing.assert_array_equal(first.dense, second.dense)
    np.testing.assert_array_equal(first.categories, second.categories)
    (tmp_path / "narrow.csv").write_text("a\n")
    with pytest.raises(DataError, match=r"has 1 columns, .*(has|have) 3, or one fewer without the label"):
        planned(**settings, predict=str(tmp_path / "narrow.csv"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\t2\t3\n" * 200, r"none of its first 100 rows can be predicted; line 1: line: found 3 columns, expected 39"),
        ("", "is empty; .*data.predict"),
    ],
)
def test_a_file_of_another_kind_is_refused_before_training(tmp_path: Path, text: str, message: str) -> None:
    train = write_lines(tmp_path / "train.tsv", LINES)
    (tmp_path / "other.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        planned(train=str(train), predict=str(tmp_path / "other.txt"))


def test_a_missing_file_names_the_settings(tmp_path: Path) -> None:
    train = write_lines(tmp_path / "train.tsv", LINES)
    with pytest.raises(DataError, match=r"no file matches this pattern; check .*data\.predict"):
        planned(train=str(train), predict=str(tmp_path / "*.gone"))


def test_coarser_cuts_are_a_selection_of_the_finer_ones() -> None:
    index = FileIndex("a", 95, tuple(range(0, 95, 10)), tuple(range(0, 950, 100)), 955)
    found = coarser(index, 25)
    assert (found.starts, found.offsets) == ((0, 30, 60, 90), (0, 300, 600, 900))
    assert coarser(index, 1) == index and coarser(index, 1000).starts == (0,)
    assert coarser(FileIndex("b", 0, ()), 5).starts == ()
