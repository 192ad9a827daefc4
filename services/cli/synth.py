"""``penumbra synth``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.errors import DONE, command
from services.cli.options import AsJson, SynthFormat


@command
def synth(
    out: Annotated[Path, typer.Argument(help="Directory for the files; must not hold data yet.", metavar="OUT")],
    rows: Annotated[int, typer.Option(help="How many rows.", min=1)] = 1_000_000,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal rows.", min=0)] = 0,
    max_table_rows: Annotated[
        int, typer.Option(help="Cap on the distinct values of each category.", min=1)
    ] = 10_000_000,
    format: Annotated[SynthFormat, typer.Option(help="Criteo's text format, or Parquet.")] = "criteo_tsv",
    files: Annotated[int, typer.Option(help="How many files, in time order by name.", min=1)] = 1,
    as_json: AsJson = False,
) -> int:
    """Write a synthetic click log in Criteo's format, with a known Bayes AUC: what a perfect model would reach."""
    import json
    from dataclasses import asdict

    from rich.text import Text

    from services.cli.output import show, stdout_to_stderr
    from services.cli.units import count, number
    from trainer.data.synth import synthesize

    with stdout_to_stderr():
        report = synthesize(out, rows=rows, seed=seed, max_table_rows=max_table_rows, format=format, files=files)
    facts = [
        f"{count(report.rows)} rows in {out}: {', '.join(report.files)}",
        f"Bayes AUC {number(report.all_rows.bayes_auc)}, last tenth {number(report.last_tenth.bayes_auc)}; "
        f"click rate {number(report.all_rows.base_rate)}",
    ]
    show(Text("\n".join(facts)), json.dumps(asdict(report)), as_json=as_json)
    return DONE
