"""Victim: signals to one process, and to no other that gets its pid later."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from services.memory.process import ProcessIdentity, identify, is_alive

_STOPPED: Final = "TtDZX"
"""Thread states (proc(5)) that run no user code until SIGCONT: stopped, dead, or in the kernel with SIGSTOP pending."""
_FREEZE_S: Final = 2.0
_DEATH_S: Final = 10.0


class Victim:
    """A process, held by a pidfd.

    Raises:
        ProcessLookupError: from the constructor: that process is gone.
    """

    def __init__(self, process: ProcessIdentity) -> None:
        self.process = process
        self._pidfd = os.pidfd_open(process.pid)
        try:  # the descriptor is of whoever has the pid now; from here on it stays so
            same = identify(process.pid) == process and is_alive(process)
        except ProcessLookupError:
            same = False
        if not same:
            os.close(self._pidfd)
            raise ProcessLookupError(f"process {process.pid} is not the one it was")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._pidfd)

    def freeze(self) -> bool:
        """SIGSTOP, and wait until no thread runs user code any more; False when it died or does not stop."""
        self._send(signal.SIGSTOP)
        deadline = time.monotonic() + _FREEZE_S
        while not self._stands_still():
            if not is_alive(self.process) or time.monotonic() > deadline:
                return False
        return is_alive(self.process)

    def resume(self) -> None:
        """SIGCONT."""
        self._send(signal.SIGCONT)

    def kill(self) -> bool:
        """SIGKILL (a stopped process dies of it, too); True once it is seen dead."""
        self._send(signal.SIGKILL)
        deadline = time.monotonic() + _DEATH_S
        while is_alive(self.process):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def _stands_still(self) -> bool:
        try:
            tasks = list(Path(f"/proc/{self.process.pid}/task").iterdir())
        except FileNotFoundError:
            return True
        return all(_state(task) in _STOPPED for task in tasks)


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
