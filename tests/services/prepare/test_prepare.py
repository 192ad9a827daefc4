"""Criteo text to Parquet: nothing lost, resumable, reported. In this process, where Ray is not the point."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from services.cli.app import app
from services.prepare.manifest import Settings
from services.prepare.report import PrepareReport
from services.prepare.run import Request, prepare
from tests.trainer.data.reference import GOOD_LINE, check_blocks, write_lines
from trainer.config import CategoryConfig, DataConfig
from trainer.data.dataset import open_dataset
from trainer.data.errors import DataError
from trainer.data.rejections import TooManyBadLinesError
from trainer.data.synth import synthesize
from trainer.data.vocabulary import load_vocabularies
from trainer.data.vocabulary_build import build_vocabularies

ROOT = Path(__file__).parents[3]
COLUMNS = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
SERIAL: Any = map


def random_lines(rows: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)

    def line() -> str:
        integers = [rng.choice(["", str(rng.randint(-30, 99)), str(10**18 - 1), "-0"]) for _ in range(13)]
        hexes = [rng.choice(["", f"{rng.getrandbits(32):08x}", "000000ab", "ffffffff"]) for _ in range(26)]
        return "\t".join([rng.choice("01"), *integers, *hexes])

    return [line() for _ in range(rows)]


def run(source: Path | list[Path], out: Path, **changes: Any) -> PrepareReport:
    given: dict[str, Any] = {"group": 8, "file": 20, "bad": 0.0, "labeled": True, "min_count": None, **changes}
    settings = Settings(labeled=given["labeled"], group_rows=given["group"], file_rows=given["file"])
    inputs = tuple(map(str, source if isinstance(source, list) else [source]))
    return prepare(Request(inputs, out, settings, given["bad"], given["min_count"]), lambda *_: None, SERIAL)


def read(out: Path) -> list[Any]:
    dataset = open_dataset(DataConfig(format="parquet", train=str(out), eval_fraction=0, rows_per_split=8))
    return [b for s in dataset.plan_splits().train for b in dataset.read(s, ((s.row_start, s.row_end),), 100)]


def check_rows(out: Path, lines: list[str]) -> None:
    """The files, laid end to end, hold exactly ``lines``."""
    at = 0
    for block in read(out):
        block.line_start, block.line_end = at, at + block.rows
        check_blocks([block], lines, range(at, at + block.rows))
        at += block.rows
    assert at == len(lines)


def names(out: Path) -> list[str]:
    return sorted(path.name for path in out.glob("*.parquet"))


@pytest.mark.parametrize("zipped", [False, True])
def test_rows_come_back_in_order_without_a_loss(tmp_path: Path, zipped: bool) -> None:
    lines = random_lines(90)
    for name, part in (("day_2", lines[:50]), ("day_10", lines[50:])):
        write_lines(tmp_path / name, part)
        if zipped:
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
            (tmp_path / name).unlink()
    report = run(tmp_path, tmp_path / "out")
    assert (report.rows, report.rejected_lines) == (90, 0)
    assert report.files == names(tmp_path / "out")
    assert len(report.files) == (2 if zipped else 5)
    check_rows(tmp_path / "out", lines)
    table = pq.read_table([tmp_path / "out" / name for name in report.files])
    for at, name in enumerate(COLUMNS):
        fields = [line.split("\t")[at] for line in lines]
        assert table[name].to_pylist() == [int(f, 16 if name[0] == "C" else 10) if f else None for f in fields]
    groups = pq.read_metadata(tmp_path / "out" / report.files[0])
    assert groups.row_group(0).num_rows == 8


def test_the_report_counts_columns_and_builds_vocabularies(tmp_path: Path) -> None:
    lines = random_lines(120)
    source = write_lines(tmp_path / "a.tsv", lines)
    report = run(source, tmp_path / "out", min_count=3)
    assert report == PrepareReport.model_validate_json((tmp_path / "out" / "report.json").read_text())
    for at, name in enumerate(COLUMNS[1:], start=1):
        fields = [line.split("\t")[at] for line in lines]
        column = report.columns[name]
        assert column.missing == fields.count("")
        distinct = len({int(f, 16 if name[0] == "C" else 10) for f in fields if f})
        assert column.cardinality == pytest.approx(distinct, abs=0 if column.exact else 2)
        assert column.exact == (name[0] == "C")
    categories = CategoryConfig(encoding="vocabulary", min_count=3)
    cfg = DataConfig(train=str(source), eval_fraction=0, categories=categories)
    dataset = open_dataset(cfg)
    expected = build_vocabularies(dataset, dataset.plan_splits().train, cfg)
    found = load_vocabularies(tmp_path / "out" / "vocabulary")
    assert found.keys() == expected.keys()
    for name, vocabulary in expected.items():
        assert np.array_equal(found[name].values, vocabulary.values)
        assert np.array_equal(found[name].counts, vocabulary.counts)


@pytest.mark.parametrize("allowed", [5, 2])
def test_three_bad_rows_in_a_thousand(tmp_path: Path, allowed: int) -> None:
    lines = [GOOD_LINE] * 1000
    for at in (10, 500, 999):
        lines[at] = GOOD_LINE.replace("68fd1e64", "xyz", 1)
    source = write_lines(tmp_path / "a.tsv", lines)
    out = tmp_path / "out"
    if allowed == 5:
        report = run(source, out, bad=0.005, file=200)
        assert (report.rows, report.rejected_lines) == (997, 3)
    else:
        with pytest.raises(TooManyBadLinesError, match=r"allows 2 of 1000 rows") as failure:
            run(source, out, bad=0.002, file=200)
        for number in (11, 501, 1000):
            assert f"{source}:{number}: C1: found 'xyz', expected 8 hexadecimal digits" in str(failure.value)
    rejected = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    assert [(line["path"], line["line"]) for line in rejected] == [(str(source), n) for n in (11, 501, 1000)]


def test_rubbish_stops_early_and_lists_ten(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.tsv", ["rubbish"] * 50)
    with pytest.raises(TooManyBadLinesError) as failure:
        run(source, tmp_path / "out", group=64, file=1000)
    assert len(str(failure.value).splitlines()) == 11
    assert names(tmp_path / "out") == []


def test_a_second_run_writes_only_what_is_missing(tmp_path: Path) -> None:
    sources = [write_lines(tmp_path / f"day_{day}", random_lines(50, day)) for day in (0, 1)]
    out = tmp_path / "out"
    first = run(sources, out)
    written = {name: (out / name).stat().st_mtime_ns for name in names(out)}
    (out / first.files[1]).unlink()
    second = run(sources, out)
    assert second.resumed_files == 5
    now = {name: (out / name).stat().st_mtime_ns for name in names(out)}
    assert [name for name in now if now[name] != written[name]] == [first.files[1]]
    assert second.columns == first.columns
    write_lines(sources[1], random_lines(30, 7))
    third = run(sources, out)
    assert (third.rows, third.resumed_files) == (80, 3)
    check_rows(out, [*random_lines(50, 0), *random_lines(30, 7)])
    assert run(sources[:1], out).files == names(out)  # what an input no longer asks for is not trained on
    assert run(sources[:1], out, min_count=1).resumed_files == 0  # nothing was counted before


def test_a_run_that_was_killed_goes_on(tmp_path: Path) -> None:
    synthesize(tmp_path / "in", rows=40_000, seed=0, max_table_rows=100)
    out = tmp_path / "out"
    code = (
        "import sys; from pathlib import Path; from services.prepare.manifest import Settings\n"
        "from services.prepare.run import Request, prepare\n"
        f"s = Settings(group_rows=500, file_rows=500)\n"
        f"prepare(Request(({str(tmp_path / 'in' / 'part-00000.tsv')!r},), Path({str(out)!r}), s, 0.0), print, map)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline_s = time.monotonic() + 60
    while len(names(out)) < 5 and time.monotonic() < deadline_s and child.poll() is None:
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.wait()
    there = names(out)
    assert 5 <= len(there) < 80
    for name in there:  # what has its name is whole
        assert pq.read_metadata(out / name).num_rows == 500
    report = run(tmp_path / "in" / "part-00000.tsv", out, group=500, file=500)
    assert report.resumed_files >= len(there) - 1
    assert (report.rows, len(report.files)) == (40_000, 80)
    config = DataConfig(train=str(tmp_path / "in" / "part-00000.tsv"), eval_fraction=0, rows_per_split=100_000)
    text = open_dataset(config)
    (whole,) = text.read(text.plan_splits().train[0], ((0, 40_000),), 40_000)
    blocks = read(out)
    assert np.array_equal(np.concatenate([b.dense for b in blocks]), whole.dense)
    assert np.array_equal(np.concatenate([b.categories for b in blocks], axis=1), whole.categories)


def test_directories_that_hold_something_else(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.tsv", [GOOD_LINE] * 5)
    out = tmp_path / "out"
    run(source, out)
    with pytest.raises(ValueError, match="was prepared with"):
        run(source, out, file=3)
    with pytest.raises(DataError, match="where the inputs are"):
        run(source, tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.parquet").touch()
    with pytest.raises(ValueError, match="already holds 1 Parquet files"):
        run(source, tmp_path / "mine")
    assert (tmp_path / "mine" / "a.parquet").exists()


def test_unlabeled_text(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "test.txt", [GOOD_LINE[2:]] * 5)
    run(source, tmp_path / "out", labeled=False)
    assert pq.read_table(tmp_path / "out" / "part-0000-00000.parquet").column_names == COLUMNS[1:]
    config = DataConfig(format="parquet", train=str(tmp_path / "out"), eval_fraction=0, unlabeled=True)
    dataset = open_dataset(config)
    (split,) = dataset.plan_splits().train
    check_blocks(dataset.read(split, ((0, 5),), 100), ["0" + GOOD_LINE[1:]] * 5, range(5))
    with pytest.raises(DataError, match="unlabeled"):
        open_dataset(config.model_copy(update={"unlabeled": False})).plan_splits()


def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    """Its own high-water mark: ``ru_maxrss`` would be that of the process that started it."""
    code = (
        "import re, sys; from pathlib import Path; from services.prepare.manifest import Settings\n"
        "from services.prepare.run import Request, prepare\n"
        "s = Settings(group_rows=4096, file_rows=1 << 20)\n"
        "prepare(Request((sys.argv[1],), Path(sys.argv[2]), s, 0.0), lambda *_: None, map)\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"
    )
    peaks = []
    for rows in (8_000, 160_000):  # 2 and 39 MB
        synthesize(tmp_path / f"in{rows}", rows=rows, seed=0, max_table_rows=1000)
        command = [sys.executable, "-c", code, str(tmp_path / f"in{rows}"), str(tmp_path / f"out{rows}")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        peaks.append(int(re.findall(r"^\d+$", done.stdout, re.MULTILINE)[0]) * 1024)
    assert peaks[1] - peaks[0] < 24 << 20


def test_the_command_on_ray_data(tmp_path: Path) -> None:
    synthesize(tmp_path / "in", rows=3000, seed=0, max_table_rows=100, files=2)
    command = ["prepare", str(tmp_path / "in" / "part-*.tsv"), str(tmp_path / "out"), "--rows-per-file", "500"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "services", *command, "--vocabulary", "--json"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = PrepareReport.model_validate_json(done.stdout)
    assert (report.rows, len(report.files), report.resumed_files) == (3000, 6, 0)
    assert "writing Parquet | 3,000 of 3,000 (100%)" in done.stderr
    assert report.vocabulary is not None and (tmp_path / "out" / "vocabulary" / "C26.parquet").exists()
    serial = run(tmp_path / "in" / "part-00000.tsv", tmp_path / "serial", group=16_384, file=500)
    for name in serial.files:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "serial" / name).read_bytes()


def test_a_damaged_input_on_ray_data_is_one_readable_error(tmp_path: Path) -> None:
    whole = gzip.compress("".join(line + "\n" for line in random_lines(2000)).encode())
    (tmp_path / "a.tsv.gz").write_bytes(whole[: len(whole) // 2])
    done = subprocess.run(
        [sys.executable, "-m", "services", "prepare", str(tmp_path / "a.tsv.gz"), str(tmp_path / "out"), "--json"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 1
    assert "a.tsv.gz: gzip file is truncated" in json.loads(done.stdout)["error"]
    assert "Traceback" not in done.stderr


def test_a_source_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.tsv", random_lines(50))

    def changes_first(run: Any, items: Any) -> Any:
        for item in items:
            yield run(item)
            write_lines(source, random_lines(60))

    settings = Settings(group_rows=8, file_rows=20)
    request = Request((str(source),), tmp_path / "out", settings, 0.0)
    with pytest.raises(DataError, match="has changed since its rows were counted"):
        prepare(request, lambda *_: None, changes_first)
    assert names(tmp_path / "out") == []


def test_wrong_use_of_the_command(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["prepare", str(tmp_path)]).exit_code == 2
    assert CliRunner().invoke(app, ["prepare", "a", "b", "--max-bad-lines", "2"]).exit_code == 2
