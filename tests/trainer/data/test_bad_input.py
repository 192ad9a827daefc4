"""What is wrong with Criteo files as people have them: the message names the place, what was found and expected."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.trainer.data.reference import GOOD_LINE, check_blocks, write_lines
from trainer.config import DataConfig
from trainer.data.block import RawBlock, RejectedLine
from trainer.data.dataset import open_dataset
from trainer.data.errors import DataError

COLUMNS = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]


def read(path: Path, *, unlabeled: bool = False) -> list[RawBlock]:
    dataset = open_dataset(DataConfig(train=str(path), eval_fraction=0, unlabeled=unlabeled))
    return [b for s in dataset.plan_splits().train for b in dataset.read(s, ((s.row_start, s.row_end),), 100)]


def only_rejected(path: Path, *, unlabeled: bool = False) -> RejectedLine:
    (line,) = [line for block in read(path, unlabeled=unlabeled) for line in block.rejected]
    return line


def test_an_unlabeled_line_names_the_option(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "test.txt", [GOOD_LINE, GOOD_LINE[2:]])
    line = only_rejected(path)
    assert (line.path, line.line, line.found) == (str(path), 2, "39 columns")
    assert "40 tab-separated columns" in line.expected
    assert "--unlabeled" in line.expected


def test_unlabeled_files_are_read_as_such(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "test.txt", [GOOD_LINE[2:]] * 3, end="\r\n")
    check_blocks(read(path, unlabeled=True), ["0" + GOOD_LINE[1:]] * 3, range(3))
    mixed = write_lines(tmp_path / "mixed.txt", [GOOD_LINE[2:], GOOD_LINE, GOOD_LINE[2:].replace("68fd1e64", "zz", 1)])
    found = [line for block in read(mixed, unlabeled=True) for line in block.rejected]
    assert [(line.line, line.column, line.found) for line in found] == [(2, "line", "40 columns"), (3, "C1", "'zz'")]
    assert "leave out --unlabeled" in found[0].expected


def test_unlabeled_lines_with_an_empty_first_field(tmp_path: Path) -> None:
    line = "\t".join(["", *GOOD_LINE.split("\t")[2:]])
    (block,) = read(write_lines(tmp_path / "a", [line, "-" + line, line]), unlabeled=True)
    assert (block.rows, block.dense[:, 0].tolist()) == (2, [0, 0])
    assert [(bad.line, bad.column, bad.found) for bad in block.rejected] == [(2, "I1", "'-'")]


def test_a_header_where_there_is_none(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.tsv", ["\t".join(COLUMNS), GOOD_LINE])
    line = only_rejected(path)
    assert (line.line, line.column, line.found) == (1, "label", "'label'")
    assert "looks like a header" in line.expected


@pytest.mark.parametrize("column", range(1, 40))
def test_a_column_that_is_empty_throughout_is_legal(tmp_path: Path, column: int) -> None:
    fields = GOOD_LINE.split("\t")
    fields[column] = ""
    lines = ["\t".join(fields)] * 4
    check_blocks(read(write_lines(tmp_path / "day_23", lines)), lines, range(4))


def test_all_columns_empty_is_legal(tmp_path: Path) -> None:
    lines = ["1" + "\t" * 39] * 2
    check_blocks(read(write_lines(tmp_path / "day_23", lines)), lines, range(2))


def test_files_that_are_not_there_or_hold_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.tsv").touch()
    with pytest.raises(DataError, match=r"empty\.tsv: is empty"):
        read(tmp_path / "empty.tsv")
    with gzip.open(tmp_path / "empty.tsv.gz", "wb"):
        pass
    with pytest.raises(DataError, match=r"empty\.tsv\.gz: is empty"):
        read(tmp_path / "empty.tsv.gz")
    with pytest.raises(DataError, match=r"gone\.tsv: no such file"):
        read(tmp_path / "gone.tsv")
    (tmp_path / "sub").mkdir()
    with pytest.raises(DataError, match="directory without data files"):
        read(tmp_path / "sub")


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_compressed_files_that_are_cut_or_damaged(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.tsv"
    with pa.output_stream(str(path), compression=kind) as file:
        file.write(f"{GOOD_LINE}\n".encode() * 5000)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=f"a.tsv: {kind} file is truncated.*copy it again"):
        read(path)
    path.write_bytes(whole[:40] + bytes(byte ^ 0xFF for byte in whole[40:60]) + whole[60:])
    with pytest.raises(DataError, match=f"a.tsv: {kind} file is (damaged|truncated).*copy it again"):
        read(path)


def test_zstd_files_of_several_frames(tmp_path: Path) -> None:
    parts = []
    for name in ("a", "b"):
        with pa.output_stream(str(tmp_path / name), compression="zstd") as file:
            file.write(f"{GOOD_LINE}\n".encode() * 100)
        parts.append((tmp_path / name).read_bytes())
    (tmp_path / "c.tsv.zst").write_bytes(b"".join(parts))
    check_blocks(read(tmp_path / "c.tsv.zst"), [GOOD_LINE] * 200, range(200))


def test_negative_and_missing_counts_give_finite_features(tmp_path: Path) -> None:
    counts = ["-3", "", "-2147483648", "-999999999999999999", "999999999999999999", "0", *[""] * 7]
    fields = ["1", *counts, *[""] * 26]
    (block,) = read(write_lines(tmp_path / "a.tsv", ["\t".join(fields)]))
    assert not block.rejected and np.isfinite(block.dense).all()
    assert block.dense[0, [0, 1, 2, 3, 5]].tolist() == [0.0] * 5
    assert block.dense[0, 4] == pytest.approx(np.log1p(1e18))
