"""The contract of the command line, in real processes: exit codes, what is on stdout, what is on stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from services.cli import version
from services.summary import Metrics, Phases, Summary

ROOT = Path(__file__).parents[3]
COMMANDS = ("demo", "train", "plan", "synth", "report")


def _penumbra(*args: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, "-m", "services", *args], cwd=cwd, env=env, capture_output=True, text=True, timeout=100
    )


def test_help_lists_every_command() -> None:
    done = _penumbra("--help")
    assert done.returncode == 0
    assert all(f" {command} " in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_json(command: str) -> None:
    done = _penumbra(command, "--help")
    assert done.returncode == 0
    assert "--json" in done.stdout


@pytest.mark.parametrize(
    "args", [(), ("trian",), ("train", "--no-such-option"), ("synth",), ("report",), ("report", "no-such-dir")]
)
def test_wrong_usage_exits_2_and_leaves_stdout_alone(args: tuple[str, ...]) -> None:
    done = _penumbra(*args)
    assert done.returncode == 2
    assert "Usage" in done.stdout + done.stderr
    if args:
        assert done.stdout == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("trian",), "No such command 'trian'"),
        (("train", "--no-such-option"), "No such option: --no-such-option"),
        (("synth",), "Missing argument 'OUT'"),
        (("synth", "out", "--rows", "many"), "Invalid value for '--rows'"),
        (("report", "no-such-dir"), "'no-such-dir' does not exist"),
        (("plan", "--config"), "requires an argument"),
        ((), "No such option: --json"),
    ],
)
def test_wrong_usage_with_json_prints_one_json_value(args: tuple[str, ...], message: str) -> None:
    done = _penumbra(*args, "--json") if args != ("plan", "--config") else _penumbra("plan", "--json", "--config")
    assert done.returncode == 2
    found = json.loads(done.stdout)
    assert list(found) == ["error"]
    assert message in found["error"]
    assert done.stderr == f"penumbra: error: {found['error']}\n"


def test_help_with_json_is_still_help() -> None:
    done = _penumbra("train", "--json", "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    done = _penumbra("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"penumbra {project['version']}\n", "")


def test_version_of_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "_DISTRIBUTION", "penumbra-not-installed")
    assert version.version() == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_a_url_is_no_place_for_runs() -> None:
    done = _penumbra("train", "--json", "data.train=x.tsv", "storage_path=s3://bucket/runs")
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert "command line: storage_path must be a local directory, got the URL 's3://bucket/runs'" in error


@pytest.mark.parametrize("command", ["train", "plan"])
def test_wrong_settings_exit_2_with_every_problem_and_no_traceback(command: str) -> None:
    done = _penumbra(command, "--config", str(ROOT / "configs/demo.yaml"), "train.batchsize=3", "sync.gap=0")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "did you mean train.batch_size?" in done.stderr
    assert "sync.gap must be a whole number, at least 1; found 0" in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_settings_with_json_print_one_json_value() -> None:
    done = _penumbra("train", "--json", "nonsense")
    assert done.returncode == 2
    assert "'nonsense' is not of the form key.path=value" in json.loads(done.stdout)["error"]


def test_train_without_data_says_which_setting_is_missing() -> None:
    done = _penumbra("train", "name=x")
    assert done.returncode == 2
    assert "data.train is empty" in done.stderr


def test_training_on_rows_without_labels_is_wrong_usage_with_the_remedy() -> None:
    done = _penumbra("train", "--json", "data.train=test.txt", "data.unlabeled=true")
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert "rows without labels cannot be trained on; name labeled files in data.train" in error
    assert "data.predict (--unlabeled FILE)" in error and "data.unlabeled: command line" in error


def test_debug_adds_the_traceback() -> None:
    done = _penumbra("train", "nonsense", PENUMBRA_DEBUG="1")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert "ConfigError" in done.stderr


def test_report_prints_the_table_or_the_file(tmp_path: Path) -> None:
    summary = Summary(
        run="r1",
        state="FAILED",
        error="shard 0 died",
        metrics=Metrics(auc=0.75, eval_samples=10),
        phases_s=Phases(input=1.0, dense=2.0),
    )
    summary.write(tmp_path / "summary.json")
    table = _penumbra("report", str(tmp_path))
    assert (table.returncode, table.stderr) == (0, "")
    assert all(part in table.stdout for part in ("r1", "FAILED", "shard 0 died", "0.7500", "66.7 %"))
    as_json = _penumbra("report", str(tmp_path), "--json")
    assert (as_json.returncode, as_json.stderr) == (0, "")
    assert json.loads(as_json.stdout) == json.loads((tmp_path / "summary.json").read_text())


def test_report_of_an_unfinished_run_fails_readably(tmp_path: Path) -> None:
    done = _penumbra("report", str(tmp_path), "--json")
    assert done.returncode == 1
    assert done.stderr == f"penumbra: error: {json.loads(done.stdout)['error']}\n"
    assert "the run has not finished" in done.stderr


def test_settings_are_checked_before_anything_heavy_is_imported() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['penumbra', 'train', 'nonsense']\n"
        "from services.__main__ import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n"
        "    print(end.code, sorted({'torch', 'ray', 'pyarrow', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stdout == "2 []\n"
