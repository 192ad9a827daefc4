"""``penumbra doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli.errors import DONE, FAILED, command
from services.cli.options import AsJson


@command
def doctor(
    storage_path: Annotated[str, typer.Option(help="Where runs are to be written.")] = "runs",
    start_ray: Annotated[bool, typer.Option(help="Start a Ray and run a task in it, too.")] = True,
    as_json: AsJson = False,
) -> int:
    """Check that this machine can train; name a remedy for every fault. Exit code 1 when training could not run."""
    import json

    from rich.table import Table
    from rich.text import Text

    from services.cli.output import show
    from services.doctor.examine import examine

    checks = list(examine(storage_path, start_ray=start_ray))
    can_train = all(check.level != "fail" for check in checks)
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    for check in checks:
        found = Text(check.found)
        if check.remedy:
            found.append(f"\n→ {check.remedy}", style="dim")
        table.add_row(Text(check.level, style=styles[check.level]), check.name, found)
    result = {"can_train": can_train, "checks": [check.model_dump() for check in checks]}
    show(table, json.dumps(result), as_json=as_json)
    return DONE if can_train else FAILED
