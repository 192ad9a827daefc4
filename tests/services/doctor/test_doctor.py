from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from services.cli.app import app
from services.doctor import facts, packages, system
from services.doctor.check import Check
from services.doctor.packages import Probe

GIB = 1 << 30
GOOD = {"torch": "2.13.0+cpu", "torchrec": "1.8.0", "fbgemm-gpu-cpu": "1.8.0", "fbgemm-gpu": None}

CASES: list[tuple[Check, str, str]] = [
    (packages.python_check((3, 11, 7)), "ok", "3.11.7"),
    (packages.python_check((3, 10, 1)), "fail", "3.10.1"),
    (packages.match_check(GOOD), "ok", "torch 2.13.0+cpu"),
    (packages.match_check({**GOOD, "torch": "2.9.1"}), "warn", "tested with torch 2.13.0"),
    (packages.match_check({**GOOD, "torchrec": None}), "fail", "not installed: torchrec"),
    (packages.match_check({**GOOD, "fbgemm-gpu-cpu": None}), "fail", "not installed: fbgemm-gpu-cpu"),
    (packages.match_check({**GOOD, "fbgemm-gpu": "1.8.0"}), "fail", "both own the module"),
    (packages.import_check(Probe(0)), "ok", "a lookup runs"),
    (packages.import_check(Probe(1, "ImportError: libcuda.so.1")), "fail", "exit code 1: ImportError: libcuda.so.1"),
    (packages.import_check(Probe(-11)), "fail", "killed by signal 11"),
    (packages.valkey_check("9.1.2", None), "ok", "Valkey 9.1.2"),
    (packages.valkey_check(None, "no Valkey server: none for s390x"), "fail", "s390x"),
    (packages.ray_check("2.60.0", Probe(0)), "ok", "ray 2.60.0"),
    (packages.ray_check(None, Probe(0)), "fail", "not installed"),
    (packages.ray_check("2.60.0", Probe(1, "boom")), "fail", "boom"),
    (system.memory_check(16 * GIB, 12 * GIB), "ok", "12.0 GiB of 16.0 GiB"),
    (system.memory_check(16 * GIB, 4 * GIB), "warn", "4.0 GiB"),
    (system.memory_check(16 * GIB, GIB), "fail", "1.0 GiB"),
    (system.memfd_check(None), "ok", "mapped"),
    (system.memfd_check("Function not implemented"), "fail", "not implemented"),
    (system.abstract_socket_check(None), "ok", "passed"),
    (system.abstract_socket_check("Operation not permitted"), "fail", "not permitted"),
    (system.open_files_check(1024, 65536), "ok", "65536"),
    (system.open_files_check(1024, 2048), "warn", "2048"),
    (system.open_files_check(256, 256), "fail", "256"),
    (system.shared_memory_check(8 * GIB), "ok", "8.0 GiB"),
    (system.shared_memory_check(64 << 20), "warn", "64.0 MiB"),
    (system.shared_memory_check(None), "warn", "not there"),
    (system.disk_check("/runs", 50 * GIB, True), "ok", "50.0 GiB"),
    (system.disk_check("/runs", 2 * GIB, True), "warn", "2.0 GiB"),
    (system.disk_check("/runs", 0, True), "fail", "0 B"),
    (system.disk_check("/runs", 50 * GIB, False), "fail", "cannot be written"),
    (system.gpu_check(False, None, ()), "ok", "CPU"),
    (system.gpu_check(True, None, ()), "warn", "CPU build"),
    (system.gpu_check(True, "12.9", ()), "warn", "CUDA 12.9"),
    (system.gpu_check(True, "12.9", ("H200",)), "ok", "H200 (CUDA 12.9)"),
]


@pytest.mark.parametrize(("check", "level", "found"), CASES)
def test_what_is_made_of_the_facts(check: Check, level: str, found: str) -> None:
    assert check.level == level
    assert found in check.found
    assert (check.remedy is None) == (level == "ok")


def test_the_driver_hint_goes_with_a_missing_library() -> None:
    assert "NVIDIA driver" in (packages.import_check(Probe(1, "libcuda.so.1: cannot open")).remedy or "")


def test_a_crash_in_a_probe_is_a_finding() -> None:
    assert facts.probe("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)").code == -11
    raised = facts.probe("raise ImportError('undefined symbol')")
    assert (raised.code, raised.last_line) == (1, "ImportError: undefined symbol")
    assert facts.probe("import time; time.sleep(60)", timeout_s=0.5).last_line == "took more than 0.5 s"


def test_facts_of_this_machine() -> None:
    total, available = facts.memory_bytes()
    assert 0 < available <= total
    assert facts.memfd_error() is None
    assert facts.abstract_socket_error() is None
    version, error = facts.valkey()
    assert error is None
    assert version
    soft, hard = facts.open_files()
    assert 0 < soft <= hard
    assert facts.versions("pytest", "no-such-package")["no-such-package"] is None
    _, free, writable = facts.disk("no/such/directory")
    assert free > 0 and writable


def test_the_command_says_yes_on_a_machine_that_runs_these_tests() -> None:
    done = CliRunner().invoke(app, ["doctor", "--no-start-ray", "--json"])
    result = json.loads(done.stdout)
    assert {check["name"] for check in result["checks"]} >= {"python", "memory", "memfd", "gpu", "embedding lookup"}
    failed = [check for check in result["checks"] if check["level"] == "fail"]
    assert (failed, result["can_train"], done.exit_code) == ([], True, 0)


def test_a_fault_ends_with_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")  # an interpreter that cannot import anything
    done = CliRunner().invoke(app, ["doctor", "--no-start-ray"])
    assert done.exit_code == 1
    assert "fail" in done.stdout and "make setup" in done.stdout
