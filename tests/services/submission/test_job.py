"""A job on a real cluster: submitted from a clean checkout, its log followed, its exit code passed on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.submission.upload import measure
from trainer.data.synth import synthesize

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def job_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`ray start --head` with a job server on a port of its own."""
    port, ray = free_port(), Path(sys.executable).with_name("ray")
    command = [
        str(ray), "start", "--head", "--block", f"--port={free_port()}", f"--dashboard-port={port}", "--num-cpus=8",
        f"--object-store-memory={256 * 2**20}", "--include-dashboard=true", "--disable-usage-stats",
    ]  # fmt: skip
    head = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{url}/api/version", timeout=2).close()
                break
            except urllib.error.HTTPError:
                break  # it answers, and wants the cluster's token, which clients of this machine know
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        else:
            pytest.fail("the job server did not come up")
        yield url
    finally:
        head.send_signal(signal.SIGTERM)
        head.wait(60)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean checkout of what is in the working tree (as an archive of the index would have it)."""
    target = tmp_path_factory.mktemp("checkout") / "penumbra"
    names = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
    ).stdout
    for name in filter(None, os.fsdecode(names).split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((ROOT / name).read_bytes())
    return target


def submit(server: str, checkout: Path, folder: Path, *more: str) -> tuple[int, dict[str, object], str]:
    arguments = [
        "--config", "configs/demo.yaml", f"data.train={folder / 'clicks'}", f"storage_path={folder / 'runs'}",
        "data.categories.rows=1000", *more,
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "services", "submit", "--json", "--address", server, *arguments],
        cwd=checkout,
        env={key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    return done.returncode, json.loads(done.stdout), done.stdout + done.stderr


def test_a_run_succeeds_through_the_job_server(job_server: str, checkout: Path, tmp_path: Path) -> None:
    assert measure(checkout).size_bytes < 5 * 2**20
    synthesize(tmp_path / "clicks", rows=8000, seed=0, max_table_rows=500)
    code, result, log = submit(job_server, checkout, tmp_path, "name=ok")
    assert (code, result.get("status"), result.get("exit_code")) == (0, "SUCCEEDED", 0), log
    assert "7,200 training rows" in log, "the job's log is followed"
    summary = json.loads((tmp_path / "runs/ok/summary.json").read_text())
    assert summary["state"] == "SUCCEEDED" and summary["samples"]["trained"] == 7200


def test_a_failed_run_fails_the_job_and_the_command(job_server: str, checkout: Path, tmp_path: Path) -> None:
    synthesize(tmp_path / "clicks", rows=8000, seed=0, max_table_rows=500)
    code, result, log = submit(job_server, checkout, tmp_path, "name=bad", "cluster.memory_budget_bytes=1000")
    assert code == 1 and result.get("status") == "FAILED", log
    assert "do not fit" in log
