"""Files for Ray's cluster launcher: what its own checks, and a head node without a cluster, can say about them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from services.cli.app import app
from services.config_file import load_config

ROOT = Path(__file__).parents[2]


def test_the_cluster_file_is_one_that_ray_accepts() -> None:
    config = yaml.safe_load((ROOT / "deploy/cluster.yaml").read_text(encoding="utf-8"))
    prepared = prepare_config(config)  # the order in which `ray up` does it
    validate_config(prepared)
    assert prepared["max_workers"] == 2
    assert prepared["file_mounts"]["~/penumbra"] == "."


def test_the_uploaded_script_runs_a_command_of_the_checkout(tmp_path: Path) -> None:
    script = shutil.copy(ROOT / "deploy/on_head.py", tmp_path)
    environment = {**os.environ, "PENUMBRA_HOME": str(ROOT)}
    environment.pop("PYTHONPATH", None)
    for arguments, code, said in ((["--help"], 0, "doctor"), (["train", "data.tran=x"], 2, "data.train")):
        done = subprocess.run(
            [sys.executable, script, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code and said in done.stdout + done.stderr


def test_the_documented_commands_have_settings_that_exist() -> None:
    page = (ROOT / "deploy/README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = [
        shlex.split(line) for line in page.splitlines() if line.lstrip().startswith(("ray job submit", "ray submit"))
    ]
    assert len(commands) == 2
    for words in commands:
        after = words[words.index("--") + 1 :]
        named = after[after.index("train") :]
        assert named[0] in {command.callback.__name__ for command in app.registered_commands if command.callback}
        config = ROOT / named[named.index("--config") + 1]
        assert load_config(config, [word for word in named if "=" in word]).cluster.trainers == 4
