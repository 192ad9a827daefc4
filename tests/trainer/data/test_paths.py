"""Which files a data setting names, and in which order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.trainer.data.reference import GOOD_LINE, write_lines
from trainer.config import DataConfig
from trainer.data.dataset import open_dataset
from trainer.data.errors import DataError
from trainer.data.paths import resolve_files


def names(paths: list[str]) -> list[str]:
    return [os.path.basename(path) for path in paths]


def test_directory_in_name_order_without_hidden_files(tmp_path: Path) -> None:
    for name in ("day_10", "day_2", "day_0", "_SUCCESS", ".part.crc", "notes.md", "b.tsv"):
        write_lines(tmp_path / name, [GOOD_LINE])
    assert names(resolve_files(str(tmp_path), (".tsv", ""))) == ["b.tsv", "day_0", "day_2", "day_10"]


def test_globs_and_the_order_of_patterns(tmp_path: Path) -> None:
    for name in ("part-10.tsv", "part-9.tsv", "other.x"):
        write_lines(tmp_path / name, [GOOD_LINE])
    patterns = (str(tmp_path / "other.x"), str(tmp_path / "part-*"))
    assert names(resolve_files(patterns, (".tsv",))) == ["other.x", "part-9.tsv", "part-10.tsv"]


def test_a_name_with_brackets_is_a_file_first(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a[1].tsv", [GOOD_LINE])
    assert resolve_files(str(path), (".tsv",)) == [str(path)]


def test_nothing_found_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        resolve_files(str(tmp_path / "gone"), (".tsv",))
    with pytest.raises(DataError, match="no file matches"):
        resolve_files(str(tmp_path / "*.tsv"), (".tsv",))
    with pytest.raises(DataError, match="no files"):
        resolve_files(str(tmp_path), (".tsv",))
    write_lines(tmp_path / "a.parquet", ["x"])
    with pytest.raises(DataError, match=r"\.parquet: is data\.format right"):
        resolve_files(str(tmp_path), (".tsv",))


def test_no_row_may_be_named_twice(tmp_path: Path) -> None:
    path = str(write_lines(tmp_path / "a.tsv", [GOOD_LINE]))
    with pytest.raises(DataError, match="named 2 times"):
        open_dataset(DataConfig(train=(path, str(tmp_path))))
    with pytest.raises(DataError, match="both"):
        open_dataset(DataConfig(train=path, eval=str(tmp_path)))
    with pytest.raises(DataError, match="not set"):
        open_dataset(DataConfig())


def test_evaluation_is_the_end_in_time_order_across_files(tmp_path: Path) -> None:
    for name, rows in (("day_9", 6), ("day_10", 3), ("day_11", 1)):
        write_lines(tmp_path / name, [GOOD_LINE] * rows)
    plan = open_dataset(DataConfig(train=str(tmp_path), eval_fraction=0.3, rows_per_split=4)).plan_splits()

    def rows(splits: object) -> list[tuple[str, int, int]]:
        return [(os.path.basename(s.path), s.row_start, s.row_end) for s in splits]  # type: ignore[attr-defined]

    assert rows(plan.train) == [("day_9", 0, 4), ("day_9", 4, 6), ("day_10", 0, 1)]
    assert rows(plan.eval) == [("day_10", 1, 3), ("day_11", 0, 1)]


def test_own_evaluation_path_and_too_little_data(tmp_path: Path) -> None:
    train = str(write_lines(tmp_path / "train.tsv", [GOOD_LINE] * 5))
    held_out = str(write_lines(tmp_path / "eval.tsv", [GOOD_LINE] * 3))
    plan = open_dataset(DataConfig(train=train, eval=held_out, eval_fraction=0.5)).plan_splits()
    assert (plan.train_rows, plan.eval_rows) == (5, 3)
    assert [split.path for split in plan.eval] == [held_out]
    single = str(write_lines(tmp_path / "one.tsv", [GOOD_LINE]))
    with pytest.raises(DataError, match="no rows to train on"):
        open_dataset(DataConfig(train=single, eval_fraction=0.9)).plan_splits()
