"""Options that several commands share."""

from __future__ import annotations

import json
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
Unlabeled = Annotated[
    list[str] | None,
    typer.Option(
        "--unlabeled",
        help="Files without labels to predict after training (data.predict); more may follow, or repeat the option.",
        metavar="FILE...",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def with_unlabeled(overrides: list[str] | None, files: list[str] | None) -> list[str]:
    """The overrides of a command line with ``--unlabeled FILE…``.

    An option takes one value, so what a shell makes of ``--unlabeled *.txt`` arrives as ``files`` and overrides.
    """
    given = overrides or []
    if not files:
        return given
    more = [argument for argument in given if "=" not in argument]
    predict = f"data.predict={json.dumps([*files, *more])}"
    return [*(argument for argument in given if "=" in argument), predict]


def load_with_data(config: str | None, overrides: list[str] | None) -> RunConfig:
    """The configuration of a command that reads data, which therefore has to say where it is."""
    loaded = load_config(config, overrides or ())
    if not loaded.data.train:
        raise ConfigError(["data.train is empty: name a file, directory or glob, such as data.train=clicks.tsv"])
    return loaded
