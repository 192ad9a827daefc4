"""Faults in the middle of real runs, and what a run's saves hold, for tests of recovery."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import psutil
import ray
import torch

from checkpoint.catalog import SaveCatalog
from checkpoint.manifest import Manifest
from checkpoint.piece import Piece
from checkpoint.piece_rows import PieceRows, state_shapes
from services.coordinator.launch import NAMESPACE
from services.coordinator.run_state import RunState
from services.progress import Progress
from tests.services.run_tools import events, role_processes

DETERMINISTIC = {"deterministic": True, "lookahead": 0, "precision": "fp32", "batch_size": 8}
SHARD_EVENTS = ("loaded", "adopted", "restored", "rolled_back")


def run_directory(folder: Path) -> Path:
    """Of the run that ``tiny_run`` describes."""
    return folder / "runs" / "run"


def shard_pids(folder: Path) -> dict[int, int]:
    """The process that is each shard now, by its id."""
    pids: dict[int, int] = {}
    for event in events(folder):
        if event["kind"] in SHARD_EVENTS:
            fresh = event.get("pids") or {event.get("address"): event.get("pid")}
            pids.update({int(name.split(".")[0][6:]): pid for name, pid in fresh.items() if name})
    return pids


def kill(processes: Iterable[psutil.Process | int]) -> None:
    """SIGKILL, all of them before anybody can react."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process if isinstance(process, int) else process.pid, signal.SIGKILL)


class Faults:
    """A progress callback: does one thing after another, each once its share of the samples is trained.

    A fault that returns ``False`` was not possible yet, and is tried again. The next one waits until as many events of
    ``recovered`` kinds were written as the faults so far have caused deaths.
    """

    def __init__(self, folder: Path, *faults: tuple[float, Callable[[], object]], settle: int = 1) -> None:
        """``settle``: failures that each fault causes."""
        self._folder, self._left, self._settle = folder, list(faults), settle
        self.injected: list[int] = []
        self.said: list[str] = []

    def __call__(self, progress: Progress) -> None:
        self.said += progress.messages
        total, samples = progress.total_samples, progress.samples
        if not self._left or not total or not self._left[0][0] * total <= samples < total:
            return
        if len(events(self._folder, "death")) < self._settle * len(self.injected) or self._busy():
            return
        if self._left[0][1]() is not False:
            self._left.pop(0)
            self.injected.append(samples)

    def _busy(self) -> bool:
        done = ("adopted", "restored", "rolled_back", "replaced", "restarted", "renewed")
        deaths = [event for event in events(self._folder, "death") if event["action"] != "ignore"]
        return len(deaths) > sum(event["kind"] in done for event in events(self._folder))

    def check(self, times: int) -> None:
        """All of them were injected."""
        print("injected faults:", len(self.injected), "at samples", self.injected)
        assert len(self.injected) == times


class Stopped:
    """Trainers stand still (SIGSTOP) inside: what shards hold then changes only by recovery."""

    def __init__(self) -> None:
        self._processes = role_processes(os.getpid(), "Trainer")

    def __enter__(self) -> Stopped:
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)
        time.sleep(0.3)  # what a shard was doing for them ends
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


def shard_actor(folder: Path, shard_id: int) -> object:
    """The living incarnation of a shard."""
    run_id = events(folder, "started")[-1]["run_id"]
    generation = 1
    for event in events(folder):
        if event["kind"] in ("adopted", "restored") and event["address"].startswith(f"shard-{shard_id}.g"):
            generation = int(event["address"].rsplit(".g", 1)[1])
            if event.get("spare"):
                raise LookupError("it was a spare, which keeps the name of one")
    return ray.get_actor(f"{run_id}/shard-{shard_id}.g{generation}", namespace=NAMESPACE)


def shard_rows(actor: object) -> dict[str, np.ndarray]:
    """Flat weights and optimizer state of a shard."""
    return ray.get(actor.read_rows.remote(), timeout=20.0)  # type: ignore[attr-defined]


def pieces_of(folder: Path, shard_id: int) -> list[Piece]:
    """What a shard owns, in the order it keeps it, where every table is on one shard."""
    tables = events(folder, "placed")[-1]["tables"]
    assert all(len(table["shard_ids"]) == 1 for table in tables)
    return [
        Piece(table["table"], 0, table["rows"], 0, table["dim"]) for table in tables if table["shard_ids"] == [shard_id]
    ]


def empty_rows(pieces: Sequence[Piece], optimizer: str) -> list[PieceRows]:
    """Places to restore rows of these pieces into, filled with NaN."""
    return [
        PieceRows(
            piece,
            torch.full((piece.rows, piece.dim), torch.nan),
            {name: torch.full(shape, torch.nan) for name, shape in state_shapes(optimizer, piece).items()},
        )
        for piece in pieces
    ]


def flat(rows: Sequence[PieceRows]) -> dict[str, np.ndarray]:
    """As ``shard_rows`` has them."""
    found = {"weights": np.concatenate([one.weights.flatten().numpy() for one in rows])}
    if rows[0].states:
        found["momentum1"] = np.concatenate([one.states["sum"].flatten().numpy() for one in rows])
    return found


def assert_same_rows(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Equal to the last bit."""
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        assert values.shape == actual[name].shape
        differ = np.flatnonzero(values.view(np.int32) != actual[name].view(np.int32))
        assert not len(differ), f"{name}: {len(differ)} of {len(values)} differ, first {differ[:5]}"


def catalog(folder: Path, url: str | None = None) -> SaveCatalog:
    """The run's saves, in its directory or at ``url``."""
    return SaveCatalog(url or str(run_directory(folder) / "checkpoints"), run="run")


def newest_save(folder: Path, url: str | None = None) -> Manifest:
    """The youngest complete one."""
    return catalog(folder, url).list()[-1]


def assert_everything_committed(manifest: Manifest, rows: int) -> None:
    """The data position of a run's last save: every stage done, nothing open, each row counted once."""
    position = RunState.of(manifest).books.position
    assert (position.open, position.untouched) == ((), 0)
    counts = position.counts
    assert (counts["trained"] + counts["skipped"], manifest.samples) == (rows, counts["trained"])


def checksums(manifest: Manifest) -> dict[str, object]:
    """Of every file of rows and dense state."""
    return {file.path: (file.bytes, file.checksum) for file in manifest.files}
