"""Plans against real processes on a real board; every fault is counted, in the report and in the log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.faults.board_file import START_LOW, BoardFile
from services.faults.board_reader import BoardReader, Slot
from services.faults.fault_log import Report
from services.faults.injector import Injector, InjectorError
from services.faults.plan import FaultPlan
from services.faults.run_files import fault_files
from services.faults.running import RunningInjector
from services.faults.storage_switch import StorageSwitch
from services.memory.process import identify
from tests.services.faults.role_process import Roles, state
from tests.services.run_tools import wait_until


def plan_of(*faults: dict[str, Any], **fields: Any) -> FaultPlan:
    return FaultPlan.model_validate({"patience_s": 0.3, **fields, "faults": faults})


def kill(role: str, when: dict[str, Any], index: int | str = "any") -> dict[str, Any]:
    return {"do": "kill", "whom": {"role": role, "index": index}, "when": when}


def logged(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    lines = fault_files(run_dir).log.read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def check_counts(run_dir: Path, report: Report, injected: int, not_injected: int = 0) -> None:
    print(report)
    assert (len(report.injected), len(report.not_injected)) == (injected, not_injected)
    assert report.planned == injected + not_injected
    assert (len(logged(run_dir, "injected")), len(logged(run_dir, "not_injected"))) == (injected, not_injected)


@pytest.mark.parametrize("phase", ["lookup", "update"])
def test_a_kill_hits_the_phase_that_was_asked_for(run_dir: Path, roles: Roles, phase: str) -> None:
    victim, bystander = roles.start("shard", 0), roles.start("shard", 1)
    report = Injector(plan_of(kill("shard", {"phase": phase, "entry": 5}, 0)), run_dir).run()
    check_counts(run_dir, report, 1)
    assert victim.wait(5) == -signal.SIGKILL and bystander.poll() is None
    hit = report.injected[0]
    assert (hit.role, hit.index, hit.generation, hit.pid) == ("shard", 0, 1, victim.pid)
    assert hit.phase == hit.wanted_phase == phase
    assert hit.entry is not None and hit.entry >= 5 and hit.freezes >= 1
    reader = BoardReader(roles.board)
    occupant = reader.occupant(Slot("shard", 0))
    assert occupant is not None and occupant.phase.name.lower() == phase, "it died there, by its own last word"


def test_twenty_kills_in_a_phase_each_find_the_successor(run_dir: Path, roles: Roles) -> None:
    with RunningInjector(plan_of(kill("shard", {"phase": "update", "times": 20})), run_dir) as injector:
        killed: list[int] = []
        process = roles.start("shard", 0)
        while len(killed) < 20:
            assert process.wait(20) == -signal.SIGKILL
            killed.append(process.pid)
            process = roles.start("shard", 0, generation=len(killed) + 1)
        report = injector.report(20)
    check_counts(run_dir, report, 20)
    assert [hit.pid for hit in report.injected] == killed
    assert [hit.generation for hit in report.injected] == list(range(1, 21))
    assert report.by_phase == {"update": 20} and report.phase_hits == 20
    assert process.poll() is None


def test_a_stopped_process_goes_on_after_the_hold(run_dir: Path, roles: Roles) -> None:
    process = roles.start("shard", 1)
    stop = {"do": "stop", "whom": {"role": "shard"}, "hold_s": 0.5, "when": {"phase": "update"}}
    thread, reports = run_beside(Injector(plan_of(stop), run_dir))
    wait_until(lambda: len(logged_or_none(run_dir)) == 1, 5, "the stop is logged")
    assert state(process.pid) == "T"
    thread.join(10)
    assert state(process.pid) in "SR"
    check_counts(run_dir, reports[0], 1)
    assert reports[0].injected[0].hold_s == 0.5
    (released,) = logged(run_dir, "released")
    assert (released["by"], released["found"]) == ("injector", "undone") and 0.5 <= released["held_s"] < 5


def logged_or_none(run_dir: Path) -> list[dict[str, Any]]:
    return logged(run_dir, "injected") if fault_files(run_dir).log.exists() else []


def run_beside(injector: Injector) -> tuple[threading.Thread, list[Report]]:
    reports: list[Report] = []
    thread = threading.Thread(target=lambda: reports.append(injector.run()))
    thread.start()
    return thread, reports


def test_a_stopped_process_that_was_killed_meanwhile_is_not_continued(run_dir: Path, roles: Roles) -> None:
    process = roles.start("shard", 0)
    stop = {"do": "stop", "whom": {"role": "shard"}, "hold_s": 0.6, "when": {"at_s": 0}}
    thread, reports = run_beside(Injector(plan_of(stop), run_dir))
    wait_until(lambda: len(logged_or_none(run_dir)) == 1, 5, "the stop is logged")
    process.kill()
    process.wait()
    successor = roles.start("shard", 0, generation=2)
    thread.join(10)
    check_counts(run_dir, reports[0], 1)
    assert logged(run_dir, "released")[0]["found"] == "dead"
    assert state(successor.pid) in "SR"


def test_the_state_store_is_away_and_comes_back(run_dir: Path, roles: Roles) -> None:
    process = roles.start("state_store", 0)
    report = Injector(plan_of({"do": "state_store_away", "hold_s": 0.2, "when": {"at_s": 0.1}}), run_dir).run()
    check_counts(run_dir, report, 1)
    assert report.injected[0].pid == process.pid and state(process.pid) in "SR"
    assert len(logged(run_dir, "released")) == 1


def test_poison_is_injected_when_the_trainer_has_taken_it(run_dir: Path, roles: Roles) -> None:
    roles.start("trainer", 0)
    poison = {"do": "poison_batch", "when": {"law": "uniform", "from_s": 0, "to_s": 0.3, "count": 5}}
    report = Injector(plan_of(poison), run_dir).run()
    check_counts(run_dir, report, 5)
    assert roles.poison.read_bytes() == b"x" * 5


def test_what_cannot_be_placed_is_reported_with_the_reason(run_dir: Path, roles: Roles) -> None:
    process = roles.start("shard", 0)
    storage = {"do": "storage", "fault": {"kind": "denied"}, "hold_s": 1, "when": {"at_s": 0}}
    plan = plan_of(
        kill("shard", {"phase": "restore", "within_s": 0.2}),
        kill("shard", {"at_s": 0.1}, 1),
        storage,
        {"do": "poison_batch", "when": {"at_s": 0}},
        kill("keeper", {"phase": "update", "within_s": 0.2}),
        {"do": "state_store_away", "hold_s": 1, "when": {"at_s": 0}},
    )
    report = Injector(plan, run_dir).run()
    check_counts(run_dir, report, 0, 6)
    reasons = {record.fault: record.reason for record in report.not_injected}
    assert "nobody could be frozen in restore at entry 1 or later" in reasons[0]
    assert reasons[1].startswith("no living shard-1 was found")
    assert "nobody has opened a faulty:// URL" in reasons[2]
    assert reasons[3].startswith("no living trainer was found")
    assert "no such slot on the board" in reasons[4]
    assert reasons[5].startswith("no living state_store was found")
    assert process.poll() is None and not fault_files(run_dir).control.exists()


def test_poison_that_nobody_takes_is_withdrawn(run_dir: Path, roles: Roles) -> None:
    trainer = roles.start("trainer", 0)
    os.kill(trainer.pid, signal.SIGSTOP)
    report = Injector(plan_of({"do": "poison_batch", "when": {"at_s": 0}}), run_dir).run()
    check_counts(run_dir, report, 0, 1)
    assert report.not_injected[0].reason.startswith("trainer-0 took no batch")
    os.kill(trainer.pid, signal.SIGCONT)
    time.sleep(0.1)
    assert not roles.poison.exists()


def test_samples_are_those_that_the_run_reports(run_dir: Path, roles: Roles) -> None:
    process = roles.start("shard", 0)
    metrics = run_dir / "metrics.jsonl"
    metrics.write_text('{"at_samples": 900}\n')
    thread, reports = run_beside(Injector(plan_of(kill("shard", {"at_samples": 1000})), run_dir))
    time.sleep(0.3)
    assert process.poll() is None
    with metrics.open("a") as file:
        file.write('{"at_samples": 1')
        file.flush()
        time.sleep(0.2)
        assert process.poll() is None, "half a line says nothing"
        file.write('024}\n{"other": 1}\n')
    thread.join(10)
    check_counts(run_dir, reports[0], 1)
    assert reports[0].injected[0].samples == 1024


def test_faults_that_are_left_when_the_run_ends_are_reported(run_dir: Path, roles: Roles) -> None:
    process = roles.start("shard", 0)
    stop = {"do": "stop", "whom": {"role": "shard"}, "hold_s": 100, "when": {"at_s": 0}}
    plan = plan_of(stop, kill("shard", {"phase": "restore"}), kill("shard", {"at_s": 99}))
    thread, reports = run_beside(Injector(plan, run_dir))
    wait_until(lambda: len(logged_or_none(run_dir)) == 1, 5, "the stop is logged")
    (run_dir / "summary.json").write_text("{}")
    thread.join(10)
    check_counts(run_dir, reports[0], 1, 2)
    assert all(record.reason.startswith("the run ended before") for record in reports[0].not_injected)
    assert state(process.pid) in "SR"


def test_without_a_board_the_events_name_the_shards(tmp_path: Path, roles: Roles) -> None:
    run_dir = tmp_path / "other"
    run_dir.mkdir()
    process, successor = roles.start("shard", 0), roles.start("shard", 1)
    stale = subprocess.Popen(["sleep", "60"])
    events = [
        {"time": 1.0, "kind": "stage", "stage": "x"},
        {"time": time.time(), "kind": "loaded", "pids": {"shard-0.g1": process.pid, "shard-1.g1": 2**22 + 1}},
        {"time": time.time(), "kind": "adopted", "address": "shard-1.g2", "pid": successor.pid},
        # a pid that is somebody else's by now: that process began after the event was written
        {"time": time.time() - 60, "kind": "adopted", "address": "shard-2.g3", "pid": stale.pid},
    ]
    (run_dir / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    plan = plan_of(kill("shard", {"at_s": 0}, 1), kill("shard", {"at_s": 0}, 2), kill("shard", {"phase": "update"}, 0))
    report = Injector(plan, run_dir).run()
    check_counts(run_dir, report, 1, 2)
    assert (report.injected[0].pid, report.injected[0].generation, report.injected[0].phase) == (successor.pid, 2, None)
    assert process.poll() is None and stale.poll() is None
    assert "no phase board" in {record.fault: record.reason for record in report.not_injected}[2]
    stale.kill()
    stale.wait()


def test_a_recycled_pid_is_not_signalled(run_dir: Path, roles: Roles) -> None:
    process = roles.start("shard", 0)
    BoardFile(roles.board).words("shard", 0)[START_LOW] -= 1
    plan = plan_of(kill("shard", {"at_s": 0}, 0), kill("shard", {"phase": "update", "within_s": 0.2}, 0))
    check_counts(run_dir, Injector(plan, run_dir).run(), 0, 2)
    assert process.poll() is None


def test_one_injector_a_run_and_no_run_is_an_error(run_dir: Path, roles: Roles, tmp_path: Path) -> None:
    roles.start("shard", 0)
    first = Injector(plan_of(kill("shard", {"at_s": 99})), run_dir)
    thread, reports = run_beside(first)
    wait_until(fault_files(run_dir).lock.exists, 5, "the first one is at work")
    time.sleep(0.1)
    with pytest.raises(InjectorError, match="another injector is at work"):
        Injector(plan_of(kill("shard", {"at_s": 0})), run_dir).run()
    first.stop()
    thread.join(10)
    check_counts(run_dir, reports[0], 0, 1)
    with pytest.raises(InjectorError, match="no phase board and no events"):
        Injector(plan_of(kill("shard", {"at_s": 0})), tmp_path / "nothing", wait_s=0.1).run()


def start_injector(run_dir: Path, folder: Path, *faults: dict[str, Any]) -> subprocess.Popen[bytes]:
    path = folder / "plan.json"
    path.write_text(plan_of(*faults).model_dump_json(exclude_none=True))
    return subprocess.Popen([sys.executable, "-m", "services.faults", str(path), str(run_dir)], stdout=subprocess.PIPE)


@pytest.fixture
def held(run_dir: Path, roles: Roles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An injector that holds two stopped processes and a storage fault, and aims at a phase."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.chdir(tmp_path)
    shard, trainer = roles.start("shard", 0), roles.start("trainer", 0)
    switch = StorageSwitch(str(fault_files(run_dir).control))
    injector = start_injector(
        run_dir,
        tmp_path,
        {"do": "stop", "whom": {"role": "shard"}, "hold_s": 500, "when": {"phase": "update"}},
        {"do": "stop", "whom": {"role": "trainer"}, "hold_s": 500, "when": {"at_s": 0}},
        {"do": "storage", "fault": {"kind": "denied"}, "hold_s": 500, "when": {"at_s": 0}},
        kill("shard", {"phase": "restore"}),
    )
    wait_until(lambda: len(logged_or_none(run_dir)) == 3, 20, "three faults are held")
    assert state(shard.pid) == state(trainer.pid) == "T"
    wait_until(lambda: len(switch.active()) == 1, 5, "the storage is denied")
    yield injector, shard, trainer, switch
    injector.kill()
    injector.communicate()


def undone(shard: Any, trainer: Any, switch: StorageSwitch) -> Callable[[], bool]:
    return lambda: "T" not in state(shard.pid) + state(trainer.pid) and not switch.active()


def test_when_the_injector_is_killed_its_guardian_undoes_everything(run_dir: Path, held: Any) -> None:
    injector, shard, trainer, switch = held
    injector.send_signal(signal.SIGKILL)
    wait_until(undone(shard, trainer, switch), 10, "everything is undone")
    wait_until(lambda: len(logged(run_dir, "released")) == 3, 5, "the guardian wrote it down")
    released = logged(run_dir, "released")
    assert {record["by"] for record in released} == {"guardian"}
    assert sorted(record.get("pid", 0) for record in released) == sorted([0, shard.pid, trainer.pid])
    assert len(logged(run_dir, "injected")) == 3


def test_when_the_injector_is_told_to_end_it_undoes_everything_itself(run_dir: Path, held: Any) -> None:
    injector, shard, trainer, switch = held
    injector.send_signal(signal.SIGTERM)
    assert injector.wait(10) == 1
    wait_until(undone(shard, trainer, switch), 5, "everything is undone")
    assert [record["by"] for record in logged(run_dir, "released")] == ["injector"] * 3
    assert len(logged(run_dir, "not_injected")) == 1


def test_without_its_guardian_the_injector_holds_nothing_more(run_dir: Path, held: Any) -> None:
    injector, shard, trainer, switch = held
    tasks = Path(f"/proc/{injector.pid}/task/{injector.pid}/children").read_text().split()
    (guardian,) = [int(pid) for pid in tasks if b"guardian" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(guardian, signal.SIGTERM)
    assert identify(guardian).pid == guardian, "an ordinary end is ignored"
    os.kill(guardian, signal.SIGKILL)
    successor = None
    shard.kill()
    shard.wait()
    roles = Roles(fault_files(run_dir).board)
    try:
        successor = roles.start("shard", 0, generation=2)  # a new candidate for the last fault: it has to be announced
        assert injector.wait(10) == 1
        assert state(trainer.pid) in "SR" and not switch.active() and state(successor.pid) in "SR"
    finally:
        roles.end()
    assert "nobody would undo what is held" in logged(run_dir, "not_injected")[0]["reason"]


def test_the_command_tells_wrong_plans_and_its_report(run_dir: Path, roles: Roles, tmp_path: Path) -> None:
    process = roles.start("shard", 0)
    path = tmp_path / "plan.yaml"
    command = [sys.executable, "-m", "services.faults", str(path), str(run_dir)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    path.write_text("faults: 3")
    wrong = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert wrong.returncode == 2 and wrong.stderr.startswith(f"{path} line 1: faults: ")
    path.write_text("faults: [{do: kill, whom: {role: shard}, when: {phase: update}}]")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("1 of 1 faults injected; hit in update 1; 1 of ")
    assert process.wait(5) == -signal.SIGKILL
