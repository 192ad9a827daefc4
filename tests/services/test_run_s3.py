"""The commands on data in an object store: the environment of the command is all that its actors need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.config_file import dump_config
from tests.services.run_tools import ROOT, click_log, tiny_run
from tests.trainer.data.object_store import ObjectStore, object_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with object_store(monkeypatch) as running:
        yield running


def penumbra(store: ObjectStore, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **store.environment, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "services", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=120,
    )


def test_a_run_trains_from_a_bucket_and_a_denied_one_fails_in_one_line(store: ObjectStore, tmp_path: Path) -> None:
    address = store.put("log/clicks.tsv", click_log(tmp_path / "clicks.tsv", 500, bad=[7]).read_bytes())
    settings = tmp_path / "run.yaml"
    settings.write_text(dump_config(tiny_run(tmp_path, Path("replaced"), data={"max_bad_lines": 0.01})))
    common = ("--config", str(settings), "--json", "data.train=s3://clicks/log/*.tsv")
    done = penumbra(store, "train", "--quiet", "name=run", *common)
    assert done.returncode == 0, done.stderr
    samples = json.loads(done.stdout)["samples"]
    assert (samples["trained"], samples["rejected_lines"]) == (499, 1)
    rejected = json.loads((tmp_path / "runs/run/rejected.jsonl").read_text())
    assert (rejected["path"], rejected["line"], rejected["found"]) == (address, 8, "'many'")

    store.refuse_everybody()
    refused = penumbra(store, "plan", *common)
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["error"].startswith("s3://clicks/log/*.tsv: access denied (")
    (line,) = [line for line in refused.stderr.splitlines() if line.startswith("penumbra: error: ")]
    assert "check the credentials" in line
