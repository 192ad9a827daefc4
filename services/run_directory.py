"""A run's directory: ``storage_path/name``, owned by one command at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from services.config import RunConfig

_MAX_KEPT = 10_000


class RunInUseError(ValueError):
    """Another command is running a run of the same name in the same place."""


@contextlib.contextmanager
def run_directory(config: RunConfig) -> Iterator[Path]:
    """Create the run's directory and hold it; a former run of the same name moves aside to ``name.1``, ``name.2``, …

    Raises:
        RunInUseError: the former run is still going.
        OSError: the directory cannot be created.
    """
    storage = Path(config.storage_path)
    storage.mkdir(parents=True, exist_ok=True)
    with _locked(storage / f".{config.name}.lock", config.name):
        yield _fresh(storage / config.name)


def _fresh(directory: Path) -> Path:
    if directory.exists() and any(directory.iterdir()):
        number = next(n for n in range(1, _MAX_KEPT) if not directory.with_name(f"{directory.name}.{n}").exists())
        directory.rename(directory.with_name(f"{directory.name}.{number}"))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextlib.contextmanager
def _locked(path: Path, name: str) -> Iterator[None]:
    """An advisory lock that ends with the process, however it ends."""
    with open(path, "a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise RunInUseError(
                f"run {name!r} is going on in {path.parent} (process {holder}); choose another name= or wait for it"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
