"""Starts a server that dies with the process that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

_DIE_WITH_PARENT: Final = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Runs in a process of its own, as code between fork and exec is unsafe where there are threads. Nothing is started
when the parent died before the signal was set."""


class Launcher:
    """Starts processes from one thread that lives as long as this object.

    The kernel sends the parent-death signal when the *thread* that forked ends, so a server started by a passing
    thread would die with that one.
    """

    def __init__(self) -> None:
        self._parent = ThreadPoolExecutor(1, thread_name_prefix="state-server-parent")

    def start(self, command: list[str], directory: Path, log: Path, keep_open: int) -> subprocess.Popen[bytes]:
        """Start ``command`` in ``directory``, its output appended to ``log``.

        Args:
            command: program and arguments.
            directory: to run in.
            log: of its standard output and errors.
            keep_open: a descriptor that it inherits.
        """
        return self._parent.submit(_start, command, directory, log, keep_open).result()

    def close(self) -> None:
        """End the thread, and with it every server that is left."""
        self._parent.shutdown()


def _start(command: list[str], directory: Path, log: Path, keep_open: int) -> subprocess.Popen[bytes]:
    shim = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
    with open(log, "ab") as output:
        return subprocess.Popen(
            [*shim, *command],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(keep_open,),
            start_new_session=True,  # Ctrl-C in the terminal is for the run, which then closes the server
        )
