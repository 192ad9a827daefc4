"""The ``penumbra`` command with its subcommands."""

from __future__ import annotations

import typer

from services.cli.demo import demo
from services.cli.doctor import doctor
from services.cli.plan import plan
from services.cli.prepare import prepare
from services.cli.report import report
from services.cli.synth import synth
from services.cli.train import train

app = typer.Typer(
    help="Fault-tolerant training of recommendation models on Ray.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _command in (demo, train, prepare, plan, synth, report, doctor):
    app.command()(_command)
