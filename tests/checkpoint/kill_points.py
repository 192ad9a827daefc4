"""Stands between this process and the kernel: logs each call that changes a folder, and dies at a chosen one.

And what a power cut would have left, of what was logged: the least that POSIX promises.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

_BY_PATH = ("mkdir", "rename", "replace", "unlink", "remove", "rmdir")
_BY_DESCRIPTOR = ("write", "pwrite", "ftruncate", "fsync")


class KillPoint(NamedTuple):
    """The ``call``-th call under the folder, counted from 0: before it, in the middle (of a write), or after it."""

    call: int
    when: str


def arm(folder: Path, log: Path, kill: KillPoint | None) -> None:
    """Replace the functions of ``os`` by such that count. The calls go to ``log``, a line each, before they are made.

    Must be called in a process of its own.
    """
    root = str(folder)
    opened: dict[int, str] = {}
    lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    real_write = os.write
    count = -1

    def around(name: str, path: str, action: Any, *arguments: Any) -> Any:
        nonlocal count
        count += 1
        real_write(lines, json.dumps([name, path.removeprefix(root)]).encode() + b"\n")
        here = kill.when if kill is not None and kill.call == count else None
        if here == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if here == "middle" and "write" in name:
            descriptor, data, *offset = arguments
            half = len(data) // 2
            action(descriptor, data[: half - half % 4096 if name == "pwrite" else half], *offset)  # O_DIRECT: pages
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return action(*arguments)
        finally:  # also when the call was refused
            if here is not None:
                os.kill(os.getpid(), signal.SIGKILL)

    def opening(real: Any) -> Any:
        def call(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            if not str(path).startswith(root):
                return int(real(path, flags, *rest, **named))
            name = "create" if flags & os.O_CREAT else "open"
            descriptor = int(around(name, str(path), lambda: real(path, flags, *rest, **named)))
            opened[descriptor] = str(path)
            return descriptor

        return call

    def by_path(name: str, real: Any) -> Any:
        def call(path: Any, *rest: Any, **named: Any) -> Any:
            if not str(path).startswith(root):
                return real(path, *rest, **named)
            shown = str(rest[0]) if name in ("rename", "replace") else str(path)
            return around(name, shown, lambda: real(path, *rest, **named))

        return call

    def by_descriptor(name: str, real: Any) -> Any:
        def call(descriptor: int, *rest: Any) -> Any:
            path = opened.get(descriptor)
            return real(descriptor, *rest) if path is None else around(name, path, real, descriptor, *rest)

        return call

    def closing(real: Any) -> Any:
        def call(descriptor: int) -> None:
            opened.pop(descriptor, None)
            real(descriptor)

        return call

    os.open, os.close = opening(os.open), closing(os.close)
    for name in _BY_PATH:
        setattr(os, name, by_path(name, getattr(os, name)))
    for name in _BY_DESCRIPTOR:
        setattr(os, name, by_descriptor(name, getattr(os, name)))


def calls(log: Path) -> list[tuple[str, str]]:
    """(function, path within the folder) of each call."""
    return [(name, path) for name, path in map(json.loads, log.read_text().splitlines())]


def cut_power(folder: Path, base: Path, made: list[tuple[str, str]]) -> None:
    """Take away what was not synced when ``made`` had been done to a copy of ``base``.

    Written and not synced: half of it is left. Created, renamed or deleted, and the directory not synced: not done.
    """
    torn: set[str] = set()
    undone: dict[str, dict[str, bool]] = defaultdict(dict)
    for name, path in made:
        parent = path.rpartition("/")[0]
        if name == "fsync":
            torn.discard(path)
            undone.pop(path, None)
        elif name in ("unlink", "remove", "rmdir"):
            torn.discard(path)
            undone[parent][path] = True
        elif name != "open":
            if name in ("create", "mkdir", "rename", "replace"):
                undone[parent].setdefault(path, False)
            if name in ("create", "write", "pwrite", "ftruncate"):
                torn.add(path)
    for path in torn:
        target = folder / path[1:]
        if target.exists():
            os.truncate(target, target.stat().st_size // 2)
    for entries in undone.values():
        for path, deleted in entries.items():
            target, original = folder / path[1:], base / path[1:]
            if target.is_dir():
                shutil.rmtree(target)
            target.unlink(missing_ok=True)
            if deleted and original.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            elif deleted and original.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(original, target)
