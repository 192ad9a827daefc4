"""``penumbra prepare``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from services.cli.errors import DONE, command
from services.cli.options import AsJson, Quiet


@command
def prepare(
    inputs: Annotated[
        list[str],
        typer.Argument(help="Criteo text, plain, .gz or .zst: files, directories, globs, URLs.", metavar="IN..."),
    ],
    out: Annotated[Path, typer.Argument(help="Directory for the Parquet files.", metavar="OUT")],
    vocabulary: Annotated[
        bool, typer.Option("--vocabulary", help="Count every category value and write OUT/vocabulary.")
    ] = False,
    min_count: Annotated[int, typer.Option(help="Leave rarer values out of the vocabulary.", min=1)] = 1,
    unlabeled: Annotated[bool, typer.Option("--unlabeled", help="The files have 39 columns, no label.")] = False,
    max_bad_lines: Annotated[
        float, typer.Option(help="Share of malformed lines above which to fail.", min=0, max=1)
    ] = 0.001,
    rows_per_split: Annotated[int, typer.Option(help="Rows of a row group.", min=1)] = 16_384,
    rows_per_file: Annotated[int, typer.Option(help="Rows of an output file, the unit of work.", min=1)] = 1_048_576,
    address: Annotated[str | None, typer.Option(help="Ray cluster to use; a private one when left out.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Write Criteo text as Parquet that trains faster. Run it again to go on where it stopped."""
    from services.cli.output import show, stdout_to_stderr
    from services.cli.prepare_view import PrepareProgress, prepare_view
    from services.config import ClusterConfig, RunConfig
    from services.prepare.manifest import Settings
    from services.prepare.run import Request
    from services.prepare.run import prepare as run
    from services.ray_session import ray_session

    settings = Settings(labeled=not unlabeled, group_rows=rows_per_split, file_rows=rows_per_file)
    request = Request(tuple(inputs), out, settings, max_bad_lines, min_count if vocabulary else None)
    with (
        stdout_to_stderr(),
        PrepareProgress(sys.stderr, quiet=quiet) as on_progress,
        ray_session(RunConfig(cluster=ClusterConfig(address=address))),
    ):
        report = run(request, on_progress)
    show(prepare_view(report, out), report.model_dump_json(by_alias=True), as_json=as_json)
    return DONE
