"""Processes of this node: who they are, killing them, and seeing them dead."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import NamedTuple


class ProcessIdentity(NamedTuple):
    """A pid with its start time, so that a recycled pid is never taken for the old process."""

    pid: int
    start_ticks: int


def identify(pid: int | None = None) -> ProcessIdentity:
    """Identity of ``pid`` (default: this process).

    Raises:
        ProcessLookupError: no such process.
    """
    pid = os.getpid() if pid is None else pid
    fields = _stat(pid)
    if fields is None:
        raise ProcessLookupError(f"no process {pid}")
    return ProcessIdentity(pid, int(fields[19]))


def is_alive(process: ProcessIdentity) -> bool:
    """True while the process can still run code (a zombie cannot)."""
    fields = _stat(process.pid)
    return fields is not None and int(fields[19]) == process.start_ticks and fields[0] not in ("Z", "X")


def kill_and_confirm(process: ProcessIdentity, grace_s: float = 0.0, timeout_s: float = 10.0) -> bool:
    """SIGKILL (works on stopped processes too) unless it ends within ``grace_s``; True when it is seen dead."""
    started = time.monotonic()
    deadline = started + grace_s + timeout_s
    while is_alive(process):
        if time.monotonic() - started < grace_s:
            time.sleep(0.01)
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def peak_rss_bytes() -> int:
    """Most memory this process has had resident, shared mappings included (``ru_maxrss`` would survive ``exec``)."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        kib = next(line.split()[1] for line in file if line.startswith("VmHWM:"))
    return int(kib) * 1024


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat after the command name (index 0 is the state), or None."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
