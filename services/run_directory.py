"""A run's directory: ``storage_path/name``, owned by one command at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from services.config import RunConfig

_MAX_KEPT = 10_000


Resume = Literal["auto", "required"]
"""``required``: an error when there is nothing to go on from."""


class NothingToResumeError(ValueError):
    """A run was to be gone on with, and there is nothing to go on from."""


class OtherSavesError(ValueError):
    """A run would begin anew where there are saves already."""


class RunInUseError(ValueError):
    """Another command is running a run of the same name in the same place."""


@contextlib.contextmanager
def run_directory(config: RunConfig, resume: Resume = "auto") -> Iterator[tuple[Path, bool]]:
    """Hold the run's directory; gives it, and whether the former run of the same name is to be gone on with.

    That is so when it left a complete consistent save and did not succeed; under ``checkpoint.url`` also when only
    its saves are left. Else it moves aside to ``name.1``, ``name.2``, … and a new one begins, which is said.

    Raises:
        RunInUseError: the former run is still going.
        OtherSavesError: a new run would begin where ``checkpoint.url`` has saves, which cannot move aside with it.
        NothingToResumeError: to resume was required, and there is no such save, or the run has succeeded.
        CheckpointError: the saves cannot be looked at, so nobody knows whether there is something to go on with.
        OSError: the directory cannot be created.
    """
    storage = Path(config.storage_path)
    storage.mkdir(parents=True, exist_ok=True)
    with _locked(storage / f".{config.name}.lock", config.name):
        directory = storage / config.name
        why_not = _why_not(config, directory)
        if why_not is not None and resume == "required":
            raise NothingToResumeError(
                f"run {config.name!r} in {storage} cannot be resumed: {why_not}; pass --allow-fresh to begin it anew"
            )
        if why_not is None:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "summary.json").unlink(missing_ok=True)
            yield directory, True
        else:
            _refuse_others(config, why_not)
            moved = _fresh(directory)
            if moved is not None:
                print(
                    f"penumbra: {config.name!r} begins anew: {why_not}; what was there is in {moved}", file=sys.stderr
                )
            yield directory, False


def _why_not(config: RunConfig, directory: Path) -> str | None:
    """Why the former run cannot be gone on with; ``None``: it can."""
    if not config.checkpoint.enabled:
        return "checkpoint.enabled is false"
    if not directory.exists() and not config.checkpoint.url:
        return "there is no such run"
    summary = directory / "summary.json"
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no summary, or not one of ours
        if json.loads(summary.read_text(encoding="utf-8")).get("state") == "SUCCEEDED":
            return "it has succeeded, so there is nothing left to train"
    from checkpoint.choosing import choose_complete
    from checkpoint.errors import SaveNotFound  # these take a second to import, and most runs are new
    from services.coordinator.open_store import open_store

    try:
        choose_complete(open_store(config, directory), exact=True)
    except SaveNotFound as error:
        return str(error)
    return None


def _refuse_others(config: RunConfig, why_not: str) -> None:
    """Saves of two runs must not mix: the second would restore, or go on from, those of the first."""
    if not (config.checkpoint.enabled and config.checkpoint.url):
        return
    from services.coordinator.open_store import open_store

    store = open_store(config, Path())
    saves = [*(save.save_id for save in store.list_all()), *store.damaged()]
    if saves:
        raise OtherSavesError(
            f"checkpoint.url={config.checkpoint.url} has {len(saves)} saves already, such as {saves[-1]}, and run "
            f"{config.name!r} cannot go on from them: {why_not}. Save elsewhere (checkpoint.url), or move them away"
        )


def _fresh(directory: Path) -> Path | None:
    """Make it, empty; what was there moves to the place that is given back."""
    moved = None
    if directory.exists() and any(directory.iterdir()):
        number = next(n for n in range(1, _MAX_KEPT) if not directory.with_name(f"{directory.name}.{n}").exists())
        moved = directory.rename(directory.with_name(f"{directory.name}.{number}"))
    directory.mkdir(parents=True, exist_ok=True)
    return moved


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
