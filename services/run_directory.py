"""A run's directory: ``storage_path/name``."""

from __future__ import annotations

from pathlib import Path

from services.config import RunConfig

_MAX_KEPT = 10_000


def fresh_run_directory(config: RunConfig) -> Path:
    """Create the run's directory; a former run of the same name moves aside to ``name.1``, ``name.2``, …

    Raises:
        OSError: the directory cannot be created.
        ValueError: ``storage_path`` is a URL.
    """
    if "://" in config.storage_path:
        raise ValueError(f"storage_path must be a local directory, got the URL {config.storage_path!r}")
    directory = Path(config.storage_path) / config.name
    if directory.exists() and any(directory.iterdir()):
        number = next(n for n in range(1, _MAX_KEPT) if not directory.with_name(f"{config.name}.{n}").exists())
        directory.rename(directory.with_name(f"{config.name}.{number}"))
    directory.mkdir(parents=True, exist_ok=True)
    return directory
