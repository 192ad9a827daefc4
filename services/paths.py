"""Paths as the person meant them: relative to where the command was typed, whatever an actor's working directory is."""

from __future__ import annotations

import os

from services.config import RunConfig


def absolute(config: RunConfig) -> RunConfig:
    """``config`` with paths of data, runs and saves made absolute (``~`` is the home directory); URLs stay."""
    data = config.data.model_copy(
        update={
            "train": _absolute(config.data.train),
            "predict": _absolute(config.data.predict),
            "eval": None if config.data.eval is None else _absolute(config.data.eval),
        }
    )
    url = config.checkpoint.url
    checkpoint = config.checkpoint.model_copy(update={"url": _one(url) if url else None})
    return config.model_copy(
        update={"data": data, "checkpoint": checkpoint, "storage_path": _local(config.storage_path)}
    )


def _absolute(paths: str | tuple[str, ...]) -> str | tuple[str, ...]:
    return _one(paths) if isinstance(paths, str) else tuple(map(_one, paths))


def _one(path: str) -> str:
    return path if "://" in path else _local(path)


def _local(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))
