"""Held: the injector's line to its guardian."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from services.memory.process import ProcessIdentity

_ROOT = Path(__file__).parents[2]
_END_S = 30.0


class GuardianGone(RuntimeError):
    """The guardian was killed: nothing may be held any more."""


class Held:
    """What must be undone. Announce it *before* it is done: a hold too many is harmless.

    The guardian runs in a session of its own, so that a signal to the injector's group spares it.
    """

    def __init__(self, log_path: Path) -> None:
        self._guardian = subprocess.Popen(
            [sys.executable, "-S", "-m", "services.faults.guardian", str(log_path)],
            stdin=subprocess.PIPE,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let the guardian undo what is still held, and wait for it."""
        assert self._guardian.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guardian.stdin.close()
        self._guardian.wait(_END_S)

    def process(self, process: ProcessIdentity) -> None:
        """A process may be stopped from now on."""
        self._tell(hold=_key(process), pid=process.pid, start_ticks=process.start_ticks)

    def process_released(self, process: ProcessIdentity) -> None:
        """It is dead, or goes on."""
        self._forget(_key(process))

    def storage(self, control: str) -> None:
        """Storage faults may be on from now on."""
        self._tell(hold=control, control=control)

    def storage_released(self, control: str) -> None:
        """All are off."""
        self._forget(control)

    def _forget(self, key: str) -> None:
        with contextlib.suppress(GuardianGone):  # what is undone needs nobody
            self._tell(release=key)

    def _tell(self, **message: Any) -> None:
        assert self._guardian.stdin is not None
        try:
            self._guardian.stdin.write(json.dumps(message).encode() + b"\n")
            self._guardian.stdin.flush()
        except BrokenPipeError as error:
            raise GuardianGone(
                f"the guardian (pid {self._guardian.pid}) is gone, code {self._guardian.poll()}: nobody would undo "
                "what is held; start the injector again"
            ) from error


def _key(process: ProcessIdentity) -> str:
    return f"{process.pid}/{process.start_ticks}"
