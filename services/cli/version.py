"""``penumbra --version``."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import typer

_DISTRIBUTION = "penumbra-train"
_PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def show_version(wanted: bool) -> None:
    """Option callback: prints the version and ends the command."""
    if wanted:
        print(f"penumbra {version()}")
        raise typer.Exit()


def version() -> str:
    """Of the installed distribution, or of the checkout that runs without being installed."""
    try:
        return importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return str(tomllib.loads(_PYPROJECT.read_text(encoding="utf-8"))["project"]["version"])
