"""The ``penumbra`` command with its subcommands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from services.cli.checkpoint import checkpoint
from services.cli.demo import demo
from services.cli.doctor import doctor
from services.cli.errors import USAGE, report_error
from services.cli.plan import plan
from services.cli.prepare import prepare
from services.cli.report import report
from services.cli.resume import resume
from services.cli.submit import submit
from services.cli.synth import synth
from services.cli.train import train
from services.cli.version import show_version

_PROG = "penumbra"

app = typer.Typer(
    help="Fault-tolerant training of recommendation models on Ray.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _command in (demo, train, resume, prepare, plan, synth, report, submit, doctor):
    app.command()(_command)
app.add_typer(checkpoint, name="checkpoint")


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """Options of ``penumbra`` itself; its help is the app's."""


def run(arguments: Sequence[str]) -> int:
    """Runs one command line; returns its exit code.

    With ``--json`` wrong usage, too, is one JSON value on stdout instead of a page for people.
    """
    try:
        return int(app(arguments, prog_name=_PROG, standalone_mode="--json" not in arguments) or 0)
    except Exception as error:
        if not isinstance(error, typer.BadParameter.__bases__):  # whose base is wrong usage of any kind
            raise
        report_error(error.format_message(), as_json=True)  # type: ignore[attr-defined]
        return USAGE
