"""Opens a run's store."""

from __future__ import annotations

from pathlib import Path

from checkpoint.store import CheckpointStore
from services.config import RunConfig


def open_store(config: RunConfig, run_directory: Path) -> CheckpointStore:
    """Where the run's saves are: ``checkpoint.url``, or ``checkpoints/`` in its directory."""
    return CheckpointStore(config.checkpoint.url or str(run_directory / "checkpoints"), run=config.name)
