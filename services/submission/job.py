"""One job: submit, follow its log, know how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.submission.upload import ALWAYS_EXCLUDED

_POLL_S = 1.0
_STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended, or that it was handed over (status PENDING or RUNNING, exit code ``None``)."""

    submission_id: str
    status: str
    exit_code: int | None
    message: str | None


def entrypoint(arguments: Sequence[str]) -> str:
    """Shell command of the job: ``penumbra train`` from the working directory, no installation needed."""
    return shlex.join(["python", "-m", "services", "train", *arguments])


class JobClient:
    """Ray's job server, reached at ``address`` (the dashboard's URL or a cluster address; ``None``: Ray's defaults)."""

    def __init__(self, address: str | None) -> None:
        _use_token()
        from ray.job_submission import JobSubmissionClient

        self._client: Any = JobSubmissionClient(address)

    def submit(self, command: str, directory: Path, excludes: Sequence[str], submission_id: str | None) -> str:
        """Upload the working directory and start the job; returns its submission id."""
        runtime = {"working_dir": str(directory), "excludes": [*ALWAYS_EXCLUDED, *excludes]}
        submitted: str = self._client.submit_job(entrypoint=command, runtime_env=runtime, submission_id=submission_id)
        return submitted

    def follow(self, submission_id: str, write: Callable[[str], None]) -> JobResult:
        """Pass the job's log to ``write`` until it ends. Ctrl-C stops the job and waits for its end."""
        try:
            asyncio.run(self._tail(submission_id, write))
        except KeyboardInterrupt:
            self._client.stop_job(submission_id)
        deadline = time.monotonic() + _STOP_S
        while (result := self.result(submission_id)).exit_code is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return result

    def result(self, submission_id: str) -> JobResult:
        """The job as it stands."""
        info = self._client.get_job_info(submission_id)
        status = str(getattr(info.status, "value", info.status))
        code: int | None = None
        if status == "SUCCEEDED":
            code = 0
        elif status in ("FAILED", "STOPPED"):
            code = getattr(info, "driver_exit_code", None) or 1
        return JobResult(submission_id, status, code, info.message)

    async def _tail(self, submission_id: str, write: Callable[[str], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the log ends with the job
            async for text in self._client.tail_job_logs(submission_id):
                write(text)


def _use_token() -> None:
    """Send the cluster's token where there is one, as ``ray.init`` does; the job client alone would not.

    See Ray's page on token authentication; whoever sets ``RAY_AUTH_MODE`` decides for themselves.
    """
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if "RAY_AUTH_MODE" not in os.environ and ("RAY_AUTH_TOKEN" in os.environ or path.exists()):
        os.environ["RAY_AUTH_MODE"] = "token"  # read when Ray is imported
