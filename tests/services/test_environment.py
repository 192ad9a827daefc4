"""What commands say on a machine where fbgemm is not there, as the doctor and as a run see it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from services.coordinator.directory import Directory, Entry
from services.coordinator.supervisor import Supervisor
from services.environment import broken_environment
from services.ray_session import ray_session
from tests.services.run_tools import ROOT, click_log, settings, tiny_run

pytestmark = pytest.mark.timeout(120)

_ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "fbgemm_gpu":
            raise ModuleNotFoundError("No module named 'fbgemm_gpu'", name=name)

sys.meta_path.insert(0, Absent())
"""
SAID = "this environment cannot train (ModuleNotFoundError: No module named 'fbgemm_gpu'); run `penumbra doctor` there"


@pytest.fixture
def without_fbgemm(tmp_path: Path) -> dict[str, str]:
    """Environment of a Python, and of the Ray workers it starts, that cannot import fbgemm."""
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_ABSENT)
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}


def penumbra(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=100,
    )


def test_the_doctor_names_the_fault_and_the_remedy(without_fbgemm: dict[str, str]) -> None:
    done = penumbra(without_fbgemm, "doctor", "--no-start-ray", "--json")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    (fault,) = [check for check in result["checks"] if check["level"] == "fail"]
    assert not result["can_train"] and "No module named 'fbgemm_gpu'" in fault["found"]
    assert "make setup" in fault["remedy"]


def test_a_run_says_the_same_in_one_line(without_fbgemm: dict[str, str], tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps(settings(tmp_path, click_log(tmp_path / "clicks.tsv", 100))))
    done = penumbra(without_fbgemm, "train", "--quiet", "--json", "--config", str(config), "name=run")
    assert done.returncode == 1
    summary = json.loads(done.stdout)
    assert (summary["state"], summary["error"].startswith(SAID)) == ("FAILED", True)
    assert "\n" not in summary["error"] and "Traceback" not in done.stderr


def test_other_errors_are_not_taken_for_a_broken_installation() -> None:
    library = OSError("libcuda.so.1: cannot open shared object file")
    assert (broken_environment(library) or "").startswith("this environment cannot train (OSError: libcuda.so.1")
    assert broken_environment(FileNotFoundError(2, "no such file", "a.tsv")) is None
    assert broken_environment(ValueError("libx.so")) is None


@pytest.fixture
def one_ray(tmp_path: Path) -> Iterator[None]:
    with ray_session(tiny_run(tmp_path, tmp_path)):
        yield


def test_an_actor_that_cannot_start_tells_why(one_ray: None) -> None:
    @ray.remote(num_cpus=0)
    class Broken:
        def __init__(self) -> None:
            raise ModuleNotFoundError("No module named 'fbgemm_gpu'")

        def watch(self) -> None:
            """Never comes to be."""

    kind: Any = Broken
    directory = Directory()
    supervisor = Supervisor(directory, 60.0)
    entry = Entry(directory.next_address("shard", 0), kind.remote(), ray.get_runtime_context().get_node_id())
    directory.put(entry)
    supervisor.watch(entry)
    deadline, deaths = time.monotonic() + 60, []
    while not deaths and time.monotonic() < deadline:
        deaths = supervisor.poll(0.5)[0]
    assert [death.cause for death in deaths] == [
        "it could not start (ModuleNotFoundError: No module named 'fbgemm_gpu'); run `penumbra doctor` there: it says "
        "what to install"
    ]
