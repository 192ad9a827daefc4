"""``penumbra checkpoint list | inspect | verify | export``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from services.cli.errors import DONE, FAILED, command
from services.cli.options import AsJson

if TYPE_CHECKING:  # only what a command needs is imported, when it runs
    from checkpoint.chain import Choice

checkpoint = typer.Typer(help="Look at, check and export the saves of a run.", no_args_is_help=True)

_Place = Annotated[
    str, typer.Argument(metavar="RUN_DIR_OR_URL", help="A run directory, such as runs/demo, or where the saves are.")
]
_SAVE = "A save, as `checkpoint list` names it; the newest usable one when left out."
_SaveId = Annotated[str | None, typer.Argument(metavar="SAVE", help=_SAVE, show_default=False)]


@checkpoint.command("list")
@command
def list_saves(place: _Place, as_json: AsJson = False) -> int:
    """List the saves that a restore could take, and those it could not, with the reason."""
    from checkpoint.find_run import find_run
    from checkpoint.listing import listing
    from services.cli.checkpoint_views import listing_view
    from services.cli.output import show

    found = listing(find_run(place))
    show(listing_view(found), found.model_dump_json(), as_json=as_json)
    return DONE


@checkpoint.command()
@command
def inspect(place: _Place, save: _SaveId = None, as_json: AsJson = False) -> int:
    """Show what a save holds: tables, pieces by shard, other state. Only manifests are read."""
    from checkpoint.choosing import choose_complete
    from checkpoint.find_run import find_run
    from checkpoint.inspect import SaveView
    from services.cli.checkpoint_views import save_view
    from services.cli.output import show

    catalog = find_run(place)
    if save:
        view = SaveView.of(catalog.read_manifest(save))
    else:
        choice = choose_complete(catalog)
        _say_skipped(choice)
        view = SaveView.of(choice.chain.newest)
    show(save_view(view), view.model_dump_json(), as_json=as_json)
    return DONE


@checkpoint.command()
@command
def verify(place: _Place, save: _SaveId = None, as_json: AsJson = False) -> int:
    """Read every byte of every save (or of SAVE and those it continues). Exit code 1 when one is damaged."""
    from checkpoint.find_run import find_run
    from checkpoint.verify import verify as verify_saves
    from services.cli.checkpoint_views import verify_view
    from services.cli.output import show

    report = verify_saves(find_run(place), save, lambda name: print(f"reading {name}", file=sys.stderr))
    show(verify_view(report), report.model_dump_json(), as_json=as_json)
    return DONE if report.ok else FAILED


@checkpoint.command()
@command
def export(
    place: _Place,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write.", dir_okay=False)],
    save: Annotated[str | None, typer.Option(help=_SAVE, show_default=False)] = None,
    format: Annotated[
        Literal["torchrec", "safetensors"],
        typer.Option(help="torch.save of TorchRec's state_dict (all of it in memory), or safetensors, by table."),
    ] = "torchrec",
    dtype: Annotated[Literal["fp32", "fp16", "bf16"], typer.Option(help="Of all weights.")] = "fp32",
    tables_only: Annotated[bool, typer.Option("--tables-only", help="Leave the dense part out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    as_json: AsJson = False,
) -> int:
    """Write the model as one file for one process, with TorchRec's names."""
    from checkpoint.chain import choose
    from checkpoint.choosing import choose_complete
    from checkpoint.export import export as export_model
    from checkpoint.find_run import find_run
    from services.cli.checkpoint_views import export_view
    from services.cli.output import show

    catalog = find_run(place)
    choice = choose(catalog.list(), save_id=save) if save else choose_complete(catalog)
    _say_skipped(choice)
    report = export_model(
        catalog,
        choice.chain,
        out,
        format=format,
        dtype=dtype,
        tables_only=tables_only,
        overwrite=overwrite,
        on_table=lambda table: print(f"reading {table}", file=sys.stderr),
    )
    show(export_view(report), json.dumps(report.model_dump()), as_json=as_json)
    return DONE


def _say_skipped(choice: Choice) -> None:
    for skipped in choice.skipped:
        print(f"skipped {skipped}", file=sys.stderr)
