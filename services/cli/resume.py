"""``penumbra resume``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from services.cli.errors import DONE, FAILED, command
from services.cli.options import AsJson, Overrides, Quiet
from services.config_file import load_config
from services.run_directory import NothingToResumeError


@command
def resume(
    run: Annotated[str, typer.Argument(help="The run: its directory, or its name under --storage.", metavar="RUN")],
    overrides: Overrides = None,
    storage: Annotated[str, typer.Option(help="Directory that holds runs.", metavar="DIR")] = "runs",
    allow_fresh: Annotated[
        bool, typer.Option("--allow-fresh", help="Begin anew when there is nothing to resume.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Go on with a run from its newest complete consistent save; the first line says which, at how many samples.

    Its own settings apply, and those given here. Nothing to resume is an error (exit code 1) without --allow-fresh.
    """
    directory = Path(run) if (Path(run) / "config.yaml").exists() else Path(storage) / run
    file = directory / "config.yaml"
    if not file.exists():
        raise NothingToResumeError(
            f"{file} does not exist: there is no run {run!r} in {storage!r}; name its directory, or --storage; "
            "`penumbra train` begins a new one"
        )
    where = [f"storage_path={directory.parent.resolve()}", f"name={directory.name}"]
    loaded = load_config(str(file), [*where, *(overrides or ())])

    from services.cli.live import LiveProgress
    from services.cli.output import show, stdout_to_stderr
    from services.cli.tables import summary_view
    from services.driver import run as run_it

    with stdout_to_stderr(), LiveProgress(sys.stderr, quiet=quiet) as on_progress:
        summary = run_it(loaded, on_progress, resume="auto" if allow_fresh else "required")
    show(summary_view(summary), summary.to_json(), as_json=as_json)
    return DONE if summary.state == "SUCCEEDED" else FAILED
