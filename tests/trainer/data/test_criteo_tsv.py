"""Criteo text: values, damaged lines, compression, line ends, splits."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trainer.data.reference import GOOD_LINE, MISSING, check_blocks, write_lines
from trainer.config import DataConfig
from trainer.data.block import RawBlock
from trainer.data.criteo_tsv import CriteoTsv
from trainer.data.dataset import open_dataset
from trainer.data.errors import DataError
from trainer.data.split import Split

INTEGER = st.one_of(st.just(""), st.integers(-5, 200).map(str), st.integers(-(10**18) + 1, 10**18 - 1).map(str))
HEX = st.one_of(
    st.just(""), st.integers(0, 2**32 - 1).map("{:08x}".format), st.integers(0, 2**32 - 1).map("{:08X}".format)
)
LINE = st.tuples(
    st.sampled_from("01"), st.lists(INTEGER, min_size=13, max_size=13), st.lists(HEX, min_size=26, max_size=26)
).map(lambda parts: "\t".join([parts[0], *parts[1], *parts[2]]))


def read_all(path: Path, block_rows: int = 1000) -> list[RawBlock]:
    index = CriteoTsv().scan(str(path), 1000)
    return list(CriteoTsv().read(Split(str(path), 0, index.rows, 0), ((0, index.rows),), block_rows))


def with_field(column: int, text: str) -> str:
    fields = GOOD_LINE.split("\t")
    fields[column] = text
    return "\t".join(fields)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(LINE, min_size=1, max_size=12),
    end=st.sampled_from(["\n", "\r\n"]),
    cut_last=st.booleans(),
    zipped=st.booleans(),
    block_rows=st.integers(1, 5),
)
def test_random_rows_come_back_as_written(
    tmp_path: Path, lines: list[str], end: str, cut_last: bool, zipped: bool, block_rows: int
) -> None:
    data = end.join(lines) + ("" if cut_last else end)
    path = tmp_path / "rows"
    path.write_bytes(gzip.compress(data.encode()) if zipped else data.encode())
    check_blocks(read_all(path, block_rows), lines, range(len(lines)))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), zipped=st.booleans(), rows=st.integers(1, 30), per_split=st.integers(1, 12))
def test_any_ranges_of_any_split_are_read_exactly(
    tmp_path: Path, data: st.DataObject, zipped: bool, rows: int, per_split: int
) -> None:
    lines = [with_field(1, str(i)) for i in range(rows)]
    text = ("\n".join(lines)).encode()
    path = tmp_path / "rows"
    path.write_bytes(gzip.compress(text) if zipped else text)
    fraction = data.draw(st.sampled_from([0.0, 0.1, 0.35, 0.5]))
    dataset = open_dataset(DataConfig(train=str(path), rows_per_split=per_split, eval_fraction=fraction))
    plan = dataset.plan_splits()
    splits = plan.train + plan.eval
    assert [row for split in splits for row in range(split.row_start, split.row_end)] == list(range(rows))
    assert plan.eval_rows == round(rows * fraction) == sum(split.rows for split in plan.eval)
    assert plan.train_rows == rows - plan.eval_rows
    if zipped:
        assert len(plan.train) == 1 and len(plan.eval) <= 1
    else:
        assert all(split.rows <= per_split for split in splits)
        pieces = [text[split.byte_start : split.byte_end] for split in splits]
        assert b"".join(pieces) == text
    split = data.draw(st.sampled_from(splits))
    edges = sorted(data.draw(st.sets(st.integers(split.row_start, split.row_end), max_size=6)))
    ranges = tuple(zip(edges[::2], edges[1::2], strict=False))
    blocks = list(dataset.read(split, ranges, 3))
    wanted = [row for start, end in ranges for row in range(start, end)]
    if wanted:
        check_blocks(blocks, lines, wanted)
    else:
        assert blocks == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("00000000", 0), ("ffffffff", 2**32 - 1), ("FFFFFFFF", 2**32 - 1), ("80000000", 2**31), ("0000000a", 10),
        ("a0000000", 0xA0000000), ("09afAF90", 0x09AFAF90), ("", MISSING),
    ],
)  # fmt: skip
@pytest.mark.parametrize("column", [14, 27, 39])
def test_hexadecimal_edges(tmp_path: Path, text: str, value: int, column: int) -> None:
    blocks = read_all(write_lines(tmp_path / "a.tsv", [with_field(column, text)]))
    assert not blocks[0].rejected
    assert blocks[0].categories[column - 14, 0] == value


def test_every_byte_that_is_not_hexadecimal_is_refused_in_every_place(tmp_path: Path) -> None:
    digits = b"0123456789abcdefABCDEF"
    bad = [bytes([byte]) for byte in range(256) if byte not in digits + b"\t\n\r"]
    fields = GOOD_LINE.encode().split(b"\t")
    lines = []
    for i, byte in enumerate(bad):
        place = i % 8
        text = b"12345678"[:place] + byte + b"12345678"[place + 1 :]
        lines.append(b"\t".join([*fields[:20], text, *fields[21:]]))
    path = tmp_path / "a.tsv"
    path.write_bytes(b"\n".join([GOOD_LINE.encode(), *lines, GOOD_LINE.encode()]))
    (block,) = read_all(path)
    assert [(line.line, line.column) for line in block.rejected] == [(i + 2, "C7") for i in range(len(bad))]
    assert block.row_index is not None and block.row_index.tolist() == [0, len(bad) + 1]
    for i, line in enumerate(lines):  # one at a time, so that each must be noticed by the fast path alone
        path.write_bytes(line + b"\n")
        assert len(read_all(path)[0].rejected) == 1, bad[i]


BAD = [
    (with_field(0, "2"), "label", "'2'", "0 or 1"),
    (with_field(0, ""), "label", "''", "0 or 1"),
    (with_field(0, "01"), "label", "'01'", "0 or 1"),
    (with_field(1, "7.5"), "I1", "'7.5'", "integer"),
    (with_field(13, "-"), "I13", "'-'", "integer"),
    (with_field(5, "+3"), "I5", "'+3'", "integer"),
    (with_field(5, "12345678x0"), "I5", "'12345678x0'", "integer"),
    (with_field(5, "1" * 19), "I5", "1" * 19, "18 digits"),
    (with_field(14, "68fd1e6"), "C1", "'68fd1e6'", "8 hexadecimal digits"),
    (with_field(39, "68fd1e645"), "C26", "'68fd1e645'", "8 hexadecimal digits"),
    (with_field(39, "68fd1e6g"), "C26", "'68fd1e6g'", "8 hexadecimal digits"),
    (with_field(20, "zß"), "C7", "'zß'", "8 hexadecimal digits"),
    (GOOD_LINE + "\t", "line", "41 columns", "40 tab-separated"),
    (GOOD_LINE[2:], "line", "39 columns", "unlabeled"),
    ("", "line", "an empty line", "40 tab-separated"),
    (GOOD_LINE.replace("\t", "\x01", 1), "line", "39 columns", "40 tab-separated"),
]


@pytest.mark.parametrize(("line", "column", "found", "expected"), BAD)
def test_a_bad_line_is_set_apart_with_its_place(
    tmp_path: Path, line: str, column: str, found: str, expected: str
) -> None:
    lines = [GOOD_LINE, with_field(1, "5"), line, with_field(1, "6")]
    path = write_lines(tmp_path / "a.tsv", lines)
    blocks = read_all(path)
    check_blocks(blocks, lines, [0, 1, 3])
    (rejected,) = blocks[0].rejected
    assert (rejected.path, rejected.line, rejected.column) == (str(path), 3, column)
    assert found in rejected.found
    assert expected in rejected.expected


def test_bytes_that_are_not_utf8_are_set_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b"\n".join([GOOD_LINE.encode(), with_field(15, "@").encode().replace(b"@", b"\xff\xfe")]))
    (block,) = read_all(path)
    assert [(line.line, line.column) for line in block.rejected] == [(2, "C2")]
    assert "not UTF-8" in block.rejected[0].found


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bad=st.lists(st.sampled_from([None, *(line for line, *_ in BAD)]), min_size=1, max_size=25), rows=st.integers(1, 9)
)
def test_mixed_lines_keep_exact_numbers(tmp_path: Path, bad: list[str | None], rows: int) -> None:
    lines = [with_field(1, str(i)) if line is None else line for i, line in enumerate(bad)]
    blocks = read_all(write_lines(tmp_path / "a.tsv", lines), rows)
    good = [i for i, line in enumerate(bad) if line is None]
    if good:
        check_blocks(blocks, lines, good)
    assert [line.line for block in blocks for line in block.rejected] == [
        i + 1 for i in range(len(bad)) if i not in good
    ]


def test_lines_longer_than_the_first_buffer(tmp_path: Path) -> None:
    lines = [with_field(1, str(i)) for i in range(30_000)]  # 7 MB in one block
    check_blocks(read_all(write_lines(tmp_path / "a.tsv", lines), 30_000), lines, range(len(lines)))


def test_byte_offsets_in_a_file_of_several_scan_chunks(tmp_path: Path) -> None:
    lines = [with_field(1, str(i)) for i in range(30_000)]
    path = write_lines(tmp_path / "a.tsv", lines)
    plan = open_dataset(DataConfig(train=str(path), rows_per_split=777, eval_fraction=0.1)).plan_splits()
    text = path.read_bytes()
    for split in plan.train + plan.eval:
        piece = text[split.byte_start : split.byte_end].decode().splitlines()
        assert piece == lines[split.row_start : split.row_end]


def test_what_is_no_click_log_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"x" * (3 << 20))
    with pytest.raises(DataError, match="longer than"):
        read_all(tmp_path / "binary")


def test_truncated_gzip_is_an_error(tmp_path: Path) -> None:
    text = "\n".join(with_field(1, str(i * 7919 % 1000)) for i in range(2000)).encode()
    whole = gzip.compress(text)
    path = tmp_path / "a.gz"
    path.write_bytes(whole)
    split = Split(str(path), 0, 2000)
    for cut, message in ((len(whole) // 2, "truncated"), (len(whole) - 3, "truncated")):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=message) as caught:
            CriteoTsv().scan(str(path), 100)
        assert caught.value.path == str(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="truncated"):
        list(CriteoTsv().read(split, ((0, 2000),), 500))
    path.write_bytes(whole[:-8] + b"\0" * 8)
    with pytest.raises(DataError, match="damaged"):
        CriteoTsv().scan(str(path), 100)


def test_empty_and_changed_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").touch()
    with pytest.raises(DataError, match="is empty"):
        CriteoTsv().scan(str(tmp_path / "a.tsv"), 10)
    (tmp_path / "b.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(DataError, match="is empty"):
        CriteoTsv().scan(str(tmp_path / "b.gz"), 10)
    path = write_lines(tmp_path / "c.tsv", [GOOD_LINE] * 5)
    with pytest.raises(DataError, match="changed"):
        list(CriteoTsv().read(Split(str(path), 0, 9, 0), ((0, 9),), 10))
    with pytest.raises(DataError, match="no such file"):
        list(CriteoTsv().read(Split(str(tmp_path / "gone"), 0, 9, 0), ((0, 9),), 10))


def test_data_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(DataError("a/b.tsv", "is empty")))
    assert (str(error), error.path) == ("a/b.tsv: is empty", "a/b.tsv")


def test_dense_values_above_float_precision(tmp_path: Path) -> None:
    (block,) = read_all(
        write_lines(tmp_path / "a.tsv", [with_field(1, "123456789012345678"), with_field(1, "99999999")])
    )
    np.testing.assert_allclose(block.dense[:, 0], np.log1p([123456789012345678, 99999999]), rtol=1e-6)
