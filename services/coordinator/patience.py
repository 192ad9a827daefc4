"""Waits for an actor's answer for as long as it gives signs of life."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import ray

from services.coordinator.directory import Directory, Entry
from services.coordinator.launch import Launcher

_POLL_S = 0.05
_KILLED_S = 5.0
_LOOKED_S = 1.0


class Patience:
    """The run's thread waits with it, as nobody polls the supervisor meanwhile: a process that hangs is killed."""

    def __init__(self, directory: Directory, launcher: Launcher, heartbeat_timeout_s: float, timeout_s: float) -> None:
        """``timeout_s``: longest wait for an actor that lives."""
        self._directory, self._launcher = directory, launcher
        self._heartbeat_timeout_s, self._timeout_s = heartbeat_timeout_s, timeout_s

    def wait(self, call: Any, entry: Entry, timeout_s: float | None = None) -> Any:
        """The answer of ``entry``'s actor to ``call``.

        Raises:
            RayActorError: it died, or was killed as it hung or took longer than ``timeout_s``.
            RayTaskError: its answer is an error.
            GetTimeoutError: it hangs, and cannot be killed.
        """
        looked = excused = time.monotonic()
        deadline = looked + (self._timeout_s if timeout_s is None else timeout_s)
        while not ray.wait([call], timeout=_POLL_S)[0]:
            now, heard_s = time.monotonic(), self._heard_s(entry)
            if now - looked > _LOOKED_S:  # this process stood still itself, and could not hear
                excused = now
            looked = now
            if now > deadline or (heard_s and now - max(heard_s, excused) > self._heartbeat_timeout_s):
                self._kill(entry)
                return ray.get(call, timeout=_KILLED_S)
            for shard in self._directory.silent(now, self._heartbeat_timeout_s):  # it may wait for one of these
                if shard.address.role == "shard" and now - excused > self._heartbeat_timeout_s:
                    self._launcher.confirm_dead(shard)
        return ray.get(call)

    def _heard_s(self, entry: Entry) -> float:
        """Last sign of life, also of the spare that the actor was until it answers."""
        same = [one.last_heartbeat_s for one in self._directory.all() if one.actor is entry.actor]
        return max([entry.last_heartbeat_s, *same])

    def _kill(self, entry: Entry) -> None:
        if entry.process is not None:
            self._launcher.confirm_dead(entry)
            return
        with contextlib.suppress(ray.exceptions.RayError, ValueError):  # it never said who it is
            ray.kill(entry.actor)
