"""``penumbra report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.errors import DONE, command
from services.cli.options import AsJson


@command
def report(
    run_dir: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="A run directory, such as runs/demo.")],
    as_json: AsJson = False,
) -> int:
    """Print the final table of a run again."""
    from services.cli.output import show
    from services.cli.tables import summary_view
    from services.summary import Summary

    summary = Summary.read(run_dir / "summary.json")
    show(summary_view(summary), summary.to_json(), as_json=as_json)
    return DONE
