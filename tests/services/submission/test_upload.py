"""What would travel with a job."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from services.submission.job import entrypoint
from services.submission.upload import UploadTooLargeError, measure

ROOT = Path(__file__).parents[3]


def fill(directory: Path) -> None:
    for name, size in {"a.py": 100, "data/clicks.tsv": 5000, ".venv/lib.so": 9000, "runs/x/summary.json": 700}.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(b"x" * size)


def test_environment_runs_and_excluded_files_stay_behind(tmp_path: Path) -> None:
    fill(tmp_path)
    found = measure(tmp_path)
    assert (found.files, found.size_bytes) == (2, 5100)
    assert found.largest == (("data/clicks.tsv", 5000), ("a.py", 100))
    assert measure(tmp_path, ["*.tsv"]).size_bytes == 100
    assert measure(tmp_path, ["data"]).size_bytes == 100


def test_gitignore_is_honoured(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / ".gitignore").write_text("data/\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    found = measure(tmp_path)
    assert sorted(path for path, _ in found.largest) == [".gitignore", "a.py"]


def test_too_large_is_refused_with_the_largest_files(tmp_path: Path) -> None:
    fill(tmp_path)
    with pytest.raises(UploadTooLargeError, match=r"2 files, [\s\S]*data/clicks\.tsv[\s\S]*--exclude"):
        measure(tmp_path).check(limit_bytes=1000)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        measure(tmp_path / "nowhere")


def test_the_repository_itself_is_small() -> None:
    assert measure(ROOT).size_bytes < 5 * 2**20


def test_the_entrypoint_survives_a_shell() -> None:
    command = entrypoint(["--config", "my run.yaml", "model.over_arch=[64, 1]", "data.train=$HOME/*.tsv"])
    assert command == (
        "python -m services train --config 'my run.yaml' 'model.over_arch=[64, 1]' 'data.train=$HOME/*.tsv'"
    )
