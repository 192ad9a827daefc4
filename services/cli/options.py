"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from services.config import RunConfig
from services.config_file import ConfigError, load_config

ConfigPath = Annotated[
    str | None, typer.Option("--config", "-c", help="YAML file with the run's settings.", metavar="FILE")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings that override the file's.", metavar="KEY.PATH=VALUE", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print exactly one JSON value on stdout.")]
SynthFormat = Literal["criteo_tsv", "parquet"]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def load_with_data(config: str | None, overrides: list[str] | None) -> RunConfig:
    """The configuration of a command that reads data, which therefore has to say where it is."""
    loaded = load_config(config, overrides or ())
    if not loaded.data.train:
        raise ConfigError(["data.train is empty: name a file, directory or glob, such as data.train=clicks.tsv"])
    return loaded
