"""RunningInjector: the injector as a process beside a drill or a test, so that it shares no GIL with what it hits."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from services.faults.fault_log import Report
from services.faults.injector import InjectorError
from services.faults.plan import FaultPlan

_ROOT = Path(__file__).parents[2]


class RunningInjector:
    """A context manager that starts ``python -m services.faults``; leaving it ends the injector, too.

    Args:
        plan: what to do.
        run_dir: of the run; may not exist yet.
        wait_s: longest time until it does.
    """

    def __init__(self, plan: FaultPlan, run_dir: str | Path, *, wait_s: float = 120.0) -> None:
        self._plan, self._run_dir, self._wait_s = plan, run_dir, wait_s

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "plan.yaml"
        path.write_text(self._plan.model_dump_json(exclude_none=True), encoding="utf-8")
        command = [sys.executable, "-m", "services.faults", "--json", "--wait-s", str(self._wait_s)]
        self._process = subprocess.Popen(
            [*command, str(path), os.path.abspath(self._run_dir)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.communicate()
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        """Of the injector."""
        return self._process.pid

    def report(self, timeout_s: float, *, stop: bool = False) -> Report:
        """Wait until the plan is through.

        Args:
            timeout_s: how long.
            stop: end it now; what was not placed yet is reported so.

        Raises:
            InjectorError: it failed.
            subprocess.TimeoutExpired: it is not through.
        """
        if stop:
            self._process.terminate()
        text, errors = self._process.communicate(timeout=timeout_s)
        if self._process.returncode not in (0, 1) or not text:
            raise InjectorError(f"the injector ended with code {self._process.returncode}: {errors.strip()}")
        return Report.model_validate_json(text)
