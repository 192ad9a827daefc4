from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.app import app
from services.cli.demo import compared
from services.cli.demo_data import DemoData

DATA = DemoData(rows=2000, seed=1, max_table_rows=50, format="criteo_tsv")


def test_synth_writes_the_log_and_prints_its_report(tmp_path: Path) -> None:
    out = tmp_path / "log"
    done = CliRunner().invoke(
        app, ["synth", str(out), "--rows", "500", "--seed", "3", "--max-table-rows", "40", "--json"]
    )
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert report == json.loads((out / "synth.json").read_text())
    assert max(report["table_rows"].values()) == 40
    assert 0.5 < report["all_rows"]["bayes_auc"] < 1
    assert sum(len((out / name).read_text().splitlines()) for name in report["files"]) == 500
    for_people = CliRunner().invoke(app, ["synth", str(tmp_path / "again"), "--rows", "500", "--max-table-rows", "40"])
    assert "Bayes AUC 0." in for_people.stdout


def test_synth_refuses_a_directory_with_data(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["synth", str(tmp_path), "--rows", "10", "--max-table-rows", "5"]).exit_code == 0
    again = CliRunner().invoke(app, ["synth", str(tmp_path), "--rows", "10", "--max-table-rows", "5"])
    assert again.exit_code == 1
    assert "already holds" in again.stderr


@pytest.mark.parametrize("option", [["--rows", "0"], ["--seed", "-1"], ["--format", "csv"], ["--max-table-rows", "0"]])
def test_synth_out_of_range_is_a_usage_error(tmp_path: Path, option: list[str]) -> None:
    assert CliRunner().invoke(app, ["synth", str(tmp_path / "x"), *option]).exit_code == 2
    assert not (tmp_path / "x").exists()


def test_demo_data_is_written_once_and_again_when_something_changed(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "demo-data"
    auc = DATA.ensure(folder)
    assert auc is not None
    assert 0.5 < auc < 1
    written = folder.stat().st_ino
    assert DATA.ensure(folder) == auc
    assert folder.stat().st_ino == written
    other = DemoData(rows=2000, seed=1, max_table_rows=60, format="criteo_tsv")
    assert other.ensure(folder) != auc
    assert folder.stat().st_ino != written
    assert sorted(path.name for path in folder.parent.iterdir()) == ["demo-data"]


def test_demo_data_touches_no_other_data(tmp_path: Path) -> None:
    (tmp_path / "mine.tsv").write_text("1\n")
    with pytest.raises(ValueError, match=r"was not made by the demo.* name another directory"):
        DATA.ensure(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.tsv"]


def test_a_log_that_a_person_synthesized_is_not_the_demos(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    synth = ["synth", str(folder), "--rows", "900", "--max-table-rows", "50"]
    assert CliRunner().invoke(app, synth).exit_code == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = CliRunner().invoke(app, ["demo", "--rows", "1000", "--json", f"data.train={folder}"])
    assert done.exit_code == 1
    assert "was not made by the demo" in json.loads(done.stdout)["error"]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_file_beside_the_demo_data_survives(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    DATA.ensure(folder)
    for name in ("notes", "part-own.tsv"):
        (folder / name).write_text("keep")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match=r"also holds notes, part-own\.tsv, which the demo did not write"):
        DemoData(rows=1500, seed=1, max_table_rows=50, format="criteo_tsv").ensure(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_demo_data_behind_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir()
    link.symlink_to(target)
    first = DATA.ensure(link)
    again = DemoData(rows=2000, seed=2, max_table_rows=50, format="criteo_tsv").ensure(link)
    assert again != first
    assert link.is_symlink() and (target / "synth.json").is_file()


def test_the_last_line_of_the_demo() -> None:
    assert compared(0.74, 0.80).endswith("80% of the way from 0.5.")
    assert compared(None, 0.8) == "No AUC to compare."
