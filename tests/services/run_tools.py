"""Small real runs for tests: data, settings, faults from outside, and what a run must not leave behind."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import psutil

from services.config import RunConfig
from services.progress import Progress

ROOT = Path(__file__).parents[2]
ROLES = ("Coordinator", "Keeper", "EmbeddingShard", "Trainer", "SyncServer")
GONE_S = 20.0


def click_log(path: Path, rows: int, bad: Iterable[int] = ()) -> Path:
    """``rows`` lines in Criteo's format, those of ``bad`` (0-based) damaged in column I1."""
    rng = random.Random(rows)
    lines = []
    for _ in range(min(rows, 1000)):
        counts = [rng.randint(0, 50) for _ in range(13)]
        label = int(rng.random() < 0.2 + counts[0] / 100)
        lines.append("\t".join(map(str, [label, *counts, *(f"{rng.randint(0, 99):08x}" for _ in range(26))])))
    damaged = set(bad)
    with path.open("w", encoding="utf-8") as file:
        for row in range(rows):
            fields = lines[row % len(lines)].split("\t")
            if row in damaged:
                fields[1] = "many"
            file.write("\t".join(fields) + "\n")
    return path


def settings(folder: Path, log: Path, /, **sections: dict[str, Any]) -> dict[str, Any]:
    """A tiny model on ``log``; ``sections`` are laid over it. Ends up in ``folder/runs/run``."""
    tiny: dict[str, Any] = {
        "storage_path": str(folder / "runs"),
        "data": {"train": str(log), "eval_fraction": 0.0, "categories": {"rows": 128}},
        "model": {"embedding_dim": 4, "dense_arch": [8, 4], "over_arch": [8, 1]},
        "train": {"batch_size": 64},
        "cluster": {"trainers": 1, "shards": 1, "spare_shards": 0},
        "checkpoint": {"copy_share": 1.0},  # runs of seconds: as often as they are due
    }
    for name, section in sections.items():
        tiny[name] = {**tiny.get(name, {}), **section}
    return tiny


def tiny_run(folder: Path, log: Path, /, **sections: dict[str, Any]) -> RunConfig:
    """The same, validated."""
    return RunConfig.model_validate(settings(folder, log, **sections))


def events(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Events of the run so far."""
    path = folder / "runs" / "run" / "events.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [json.loads(line, parse_constant=_no_constant) for line in lines]
    return [event for event in found if kind is None or event["kind"] == kind]


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def role_processes(root: int, *roles: str) -> list[psutil.Process]:
    """Living role actors below the process ``root``, oldest first."""
    wanted = tuple(f"ray::{role}" for role in roles or ROLES)
    found = []
    for process in psutil.Process(root).children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE and " ".join(process.cmdline()).startswith(wanted):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return sorted(found, key=lambda process: process.create_time())


class Fault:
    """A progress callback that sends a signal to one role's process once ``share`` of the samples were trained.

    With ``times`` it does so again to another process of the role as soon as there is one.

    ``injected`` lists (role, pid, samples by then, total); it stays empty when training never got that far.
    """

    def __init__(self, role: str, number: signal.Signals, share: float = 0.1, times: int = 1) -> None:
        self._role, self._number, self._share, self._left = role, number, share, times
        self.injected: list[tuple[str, int, int, int]] = []

    def __call__(self, progress: Progress) -> None:
        due = progress.total_samples > 0 and progress.samples >= self._share * progress.total_samples
        if not due or not self._left or progress.samples >= progress.total_samples:
            return
        hit = {pid for _, pid, _, _ in self.injected}
        targets = [process for process in role_processes(os.getpid(), self._role) if process.pid not in hit]
        if targets:
            targets[0].send_signal(self._number)
            self._left -= 1
            self.injected.append((self._role, targets[0].pid, progress.samples, progress.total_samples))

    def check(self, times: int = 1) -> None:
        """Every fault was really injected, in the middle of training."""
        print("injected faults:", len(self.injected), self.injected)
        assert len(self.injected) == times
        assert all(0 < samples < total for _, _, samples, total in self.injected)


def shared_files() -> set[str]:
    """What lies in /dev/shm."""
    return set(os.listdir("/dev/shm"))


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll until ``condition`` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)


def assert_nothing_left(root: int, shm_before: set[str], seconds: float = GONE_S) -> None:
    """No role process below ``root``, no keeper memory in any process there, nothing new in /dev/shm."""
    wait_until(lambda: not role_processes(root), seconds, f"role processes end: {role_processes(root)}")
    gc.collect()  # a shard that an earlier test made in this process may still wait for it
    everybody = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    wait_until(lambda: not keeper_memory(everybody), seconds, "keeper memory is freed")
    wait_until(lambda: shared_files() <= shm_before, seconds, f"/dev/shm: {shared_files() - shm_before}")


def assert_all_dead(processes: Sequence[psutil.Process], shm_before: set[str], seconds: float = GONE_S) -> None:
    """None of the processes is left, nor anything in /dev/shm."""
    assert processes
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    assert [(process.pid, process.cmdline()) for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    wait_until(lambda: shared_files() <= shm_before, seconds, f"/dev/shm: {shared_files() - shm_before}")


def keeper_memory(processes: Iterable[psutil.Process]) -> list[str]:
    """Keeper-owned memory that any of the processes maps or holds open."""
    found = []
    for process in processes:
        base = Path(f"/proc/{process.pid}")
        try:
            found += [line for line in (base / "maps").read_text().splitlines() if "memfd:penumbra" in line]
            for fd in (base / "fd").iterdir():
                try:
                    target = os.readlink(fd)
                except OSError:
                    continue
                found += [target] if "memfd:penumbra" in target else []
        except OSError:
            continue
    return found


class Command:
    """``penumbra train`` as a process of its own, with a Ray of its own unless ``cluster.address`` is set.

    With ``verb`` "resume" it is ``penumbra resume`` of the same run, which has its settings already.
    """

    def __init__(self, folder: Path, config: dict[str, Any], verb: Literal["train", "resume"] = "train") -> None:
        self.folder = folder
        self.shm_before = shared_files()
        path = folder / "run.yaml"
        path.write_text(json.dumps(config))  # YAML too
        what = ["--config", str(path)] if verb == "train" else ["run", "--storage", config["storage_path"]]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services", verb, "--json", *what],
                cwd=folder,
                env=env,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    def until_training(self, seconds: float = 60.0) -> list[psutil.Process]:
        """Wait until training is well under way; returns the command's processes, itself first."""

        def training() -> bool:
            assert self.process.poll() is None, (self.folder / "stderr").read_text()
            return any(event["stage"].startswith("training") for event in events(self.folder, "stage"))

        wait_until(training, seconds, "training begins")
        time.sleep(1.0)
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def end(self, seconds: float = 60.0) -> tuple[int, dict[str, Any] | None]:
        """Exit code, and the one JSON value on stdout (``None`` when it printed nothing)."""
        try:
            code = self.process.wait(seconds)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        text = (self.folder / "stdout").read_text()
        return code, json.loads(text) if text else None
