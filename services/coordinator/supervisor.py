"""Notices deaths: a pending call on every actor fails at once when its process dies; silence means it hangs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import ray

from services.coordinator.directory import Directory, Entry
from services.environment import failed_start

_LOOKED_S = 1.0
"""A coordinator that is well looks several times in so long, however short ``failure.heartbeat_timeout_s`` is."""


@dataclass(frozen=True, slots=True)
class Death:
    """An incarnation that is gone, or counts as gone."""

    entry: Entry
    cause: str
    detect_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A trainer's ``run`` returned or raised."""

    entry: Entry
    result: Any = None
    error: Exception | None = None


class Supervisor:
    """Collects what happened since the last poll. Decides nothing."""

    def __init__(self, directory: Directory, heartbeat_timeout_s: float) -> None:
        self._directory, self._timeout_s = directory, heartbeat_timeout_s
        self._looked_s = self._excused_s = time.monotonic()
        self._watches: dict[Any, Entry] = {}
        self._runs: dict[Any, Entry] = {}

    def watch(self, entry: Entry) -> None:
        """Begin to watch an incarnation."""
        self._watches[entry.actor.watch.remote()] = entry

    def run(self, entry: Entry) -> None:
        """Start a trainer's training and wait for its end."""
        self._runs[entry.actor.run.remote()] = entry

    def rejoin(self, entry: Entry) -> None:
        """Wait for the end of training that a former coordinator started."""
        self._runs[entry.actor.ended.remote()] = entry

    @property
    def running(self) -> int:
        """Trainers whose ``run`` has not ended."""
        return len(self._runs)

    def poll(self, timeout_s: float) -> tuple[list[Death], list[Finished]]:
        """Deaths and finished trainers, deaths first; waits up to ``timeout_s`` for the first."""
        calls = [*self._watches, *self._runs]
        ready, _ = ray.wait(calls, num_returns=1, timeout=timeout_s) if calls else ([], [])
        if ready:  # one event often brings others: a node's death, or a shard's and its callers' errors
            ready, _ = ray.wait(calls, num_returns=len(calls), timeout=0.05)
        deaths, finished = [], []
        for call in ready:
            if call in self._watches:
                entry = self._watches.pop(call)
                if self._directory.knows(entry.address):
                    deaths.append(Death(entry, _cause(call), self._since_heartbeat(entry)))
            else:
                entry = self._runs.pop(call)
                try:
                    finished.append(Finished(entry, result=ray.get(call)))
                except Exception as error:  # whatever ended the trainer is handed to the coordinator
                    finished.append(Finished(entry, error=error))
        dead = {death.entry.address for death in deaths}
        for entry in self._silent():
            if entry.address not in dead:
                since_s = self._since_heartbeat(entry)
                deaths.append(Death(entry, f"no heartbeat for {since_s:.1f} s", since_s))
        # Everybody needs its keeper, and a new trainer needs every shard.
        deaths.sort(key=lambda death: {"keeper": 0, "shard": 1, "sync_server": 2}.get(death.entry.address.role, 3))
        return deaths, finished

    def _silent(self) -> list[Entry]:
        """Who has not been heard for long. Only what nobody listened to is excused: this process may have stood still
        itself (SIGSTOP, a debugger), and then finds everybody's last heartbeat old and the next ones not yet read.
        """
        now = time.monotonic()
        if now - self._looked_s > max(self._timeout_s / 2, _LOOKED_S):
            self._excused_s = now
        self._looked_s = now
        return self._directory.silent(now, self._timeout_s, self._excused_s)

    def _since_heartbeat(self, entry: Entry) -> float:
        return max(0.0, time.monotonic() - entry.last_heartbeat_s) if entry.last_heartbeat_s else 0.0


def _cause(call: Any) -> str:
    try:
        ray.get(call)
    except ray.exceptions.ActorDiedError as error:
        if "creation task" in str(error):
            return failed_start(str(error))
        return "its node died" if "node died" in str(error) else "its process died"
    except ray.exceptions.RayError as error:
        return type(error).__name__
    return "it left"
