"""Files of a run directory: rotation, absolute paths, one JSON object a line from many threads."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from checkpoint.errors import StorageError
from services.config import RunConfig
from services.coordinator.run_files import RunFiles
from services.paths import absolute
from services.run_directory import NothingToResumeError, OtherSavesError, RunInUseError, run_directory
from tests.checkpoint.small_run import FULL, save_full, three_tables
from trainer.data.block import RejectedLine


def config(**changes: object) -> RunConfig:
    return RunConfig.model_validate(changes)


def directory_of(chosen: RunConfig) -> Path:
    with run_directory(chosen) as (directory, going_on):
        assert not going_on
        return directory


def test_a_former_run_of_the_same_name_moves_aside(tmp_path: Path) -> None:
    chosen = config(name="r", storage_path=str(tmp_path / "deep" / "runs"))
    first = directory_of(chosen)
    assert first == tmp_path / "deep" / "runs" / "r" and first.is_dir()
    assert directory_of(chosen) == first, "an empty one is used again"
    assert sorted(path.name for path in first.parent.iterdir()) == [".r.lock", "r"]
    for number in (1, 2, 3):
        (first / "summary.json").write_text(str(number))
        assert directory_of(chosen) == first and not any(first.iterdir())
        assert (first.with_name(f"r.{number}") / "summary.json").read_text() == str(number)
    (first / "x").touch()
    (first.with_name("r.2") / "summary.json").unlink()
    first.with_name("r.2").rmdir()
    directory_of(chosen)
    assert (first.with_name("r.2") / "x").exists(), "a gap is filled, nothing is overwritten"


def test_saves_that_cannot_be_looked_at_are_no_reason_to_begin_anew(tmp_path: Path) -> None:
    chosen = config(name="r", storage_path=str(tmp_path))
    directory = directory_of(chosen)
    (directory / "checkpoints").write_text("no directory")
    with pytest.raises(StorageError, match="could not list: NotADirectoryError"), run_directory(chosen):
        pass
    assert (directory / "checkpoints").read_text() == "no directory", "nothing moved"


def test_to_resume_without_saves_on_is_refused(tmp_path: Path) -> None:
    chosen = config(name="r", storage_path=str(tmp_path), checkpoint={"enabled": False})
    save_full(tmp_path / "r" / "checkpoints", three_tables())
    with pytest.raises(NothingToResumeError, match=r"checkpoint\.enabled is false"), run_directory(chosen, "required"):
        pass
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["r"], "nothing moved"


def test_that_a_run_begins_anew_is_said_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = config(name="r", storage_path=str(tmp_path))
    directory = directory_of(chosen)
    assert capsys.readouterr().err == ""
    save_full(directory / "checkpoints", three_tables())
    manifest = directory / "checkpoints" / "saves" / FULL / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    directory_of(chosen)
    said = capsys.readouterr().err
    assert said.startswith("penumbra: 'r' begins anew: ") and f"what was there is in {tmp_path}/r.1" in said
    assert f"{FULL}: " in said and "torn" in said


def test_saves_at_a_url_outlive_the_directory_and_are_not_mixed_with_those_of_another_run(tmp_path: Path) -> None:
    url = tmp_path / "elsewhere"
    chosen = config(name="r", storage_path=str(tmp_path / "runs"), checkpoint={"url": str(url)})
    directory = directory_of(chosen)  # nothing is there yet
    save_full(url, three_tables())
    directory.rmdir()
    with run_directory(chosen) as (found, going_on):
        assert (found, going_on, found.is_dir()) == (directory, True, True)
    (directory / "summary.json").write_text(json.dumps({"state": "SUCCEEDED"}))
    with pytest.raises(OtherSavesError, match=rf"elsewhere has 1 saves already, such as {FULL}, .*it has succeeded"):
        directory_of(chosen)
    assert (directory / "summary.json").exists(), "nothing moved"
    shutil.rmtree(directory)
    (url / "saves" / FULL / "shard-0000.safetensors").unlink()
    with pytest.raises(OtherSavesError, match="run 'r' cannot go on from them: none of 1 saves can be used"):
        directory_of(chosen)
    other = config(name="other", storage_path=str(tmp_path / "runs"), checkpoint={"url": str(url)})
    with pytest.raises(OtherSavesError, match=r"is of save .* of run 'r'"):
        directory_of(other)


def test_two_commands_cannot_run_the_same_name(tmp_path: Path) -> None:
    chosen = config(name="r", storage_path=str(tmp_path))
    with run_directory(chosen) as (first, _):
        (first / "events.jsonl").touch()
        with pytest.raises(RunInUseError, match=f"run 'r' is going on .*process {os.getpid()}"), run_directory(chosen):
            pass
        assert (first / "events.jsonl").exists(), "the running one keeps its directory"
        with run_directory(config(name="other", storage_path=str(tmp_path))):
            pass
    with run_directory(chosen) as (again, _):
        assert not any(again.iterdir())


def test_files_that_cannot_be_written_are_an_alarm_and_not_the_end(tmp_path: Path) -> None:
    files = RunFiles(str(tmp_path / "r"))
    shutil.rmtree(tmp_path / "r")
    files.event("first")
    assert (tmp_path / "r" / "events.jsonl").exists(), "the directory is made again"
    shutil.rmtree(tmp_path / "r")
    (tmp_path / "r").touch()
    files.event("lost")
    files.event("lost too")
    (alarm,) = files.take_alarms()
    assert "events.jsonl cannot be written, training goes on" in alarm
    assert files.take_alarms() == []


def test_a_url_is_no_place_for_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="storage_path"):
        directory_of(absolute(config(storage_path="s3://bucket/runs")))
    assert not any(tmp_path.iterdir())


def test_paths_become_absolute_where_the_command_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    found = absolute(
        config(
            storage_path="../runs",
            checkpoint={"url": "saves"},
            data={"train": ["day_*", "/data/x.tsv", "s3://bucket/y", "~/clicks"], "eval": "late/part-1.tsv"},
        )
    )
    here = os.getcwd()
    assert found.storage_path == os.path.join(os.path.dirname(here), "runs")
    assert found.checkpoint.url == f"{here}/saves"
    assert absolute(config(checkpoint={"url": "s3://bucket/saves"})).checkpoint.url == "s3://bucket/saves"
    assert found.data.train == (f"{here}/day_*", "/data/x.tsv", "s3://bucket/y", "/home/someone/clicks")
    assert found.data.eval == f"{here}/late/part-1.tsv"
    assert absolute(config(data={"train": "a"})).data.eval is None
    assert absolute(found) == found


def test_every_line_of_every_thread_is_one_json_object(tmp_path: Path) -> None:
    files = RunFiles(str(tmp_path / "run"))
    line = RejectedLine("a.tsv", 7, "I1", "'x\\ny'", "an integer")

    def write(thread: int) -> None:
        for number in range(50):
            files.event("tick", thread=thread, number=number, text="two\nlines", path=tmp_path)
            files.metrics(at_samples=number, auc=None)
            files.rejected([line, line])

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = {
        name: [json.loads(text) for text in (files.directory / name).read_text().splitlines()]
        for name in ("events.jsonl", "metrics.jsonl", "rejected.jsonl")
    }
    assert [len(lines[name]) for name in lines] == [200, 200, 400]
    assert {(event["kind"], event["thread"], event["number"]) for event in lines["events.jsonl"]} == {
        ("tick", thread, number) for thread in range(4) for number in range(50)
    }
    assert all(event["time"] > 0 and event["path"] == str(tmp_path) for event in lines["events.jsonl"])
    assert lines["rejected.jsonl"][0] == {
        "path": "a.tsv", "line": 7, "column": "I1", "found": "'x\\ny'", "expected": "an integer"
    }  # fmt: skip
    assert (files.directory / "checkpoints").is_dir()
