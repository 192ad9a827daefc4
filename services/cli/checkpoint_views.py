"""What the ``penumbra checkpoint`` commands print for people."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from services.cli.units import count, size

if TYPE_CHECKING:  # they bring torch, which list and inspect can do without
    from checkpoint.export import ExportReport
    from checkpoint.inspect import SaveView
    from checkpoint.listing import Listing
    from checkpoint.verify import VerifyReport


def listing_view(listing: Listing) -> RenderableType:
    """One line a save, oldest first, and what is wrong with any."""
    table = _table("save", "samples", "size", "written", "cut", "continues", left=(0, 3, 4, 5))
    for save in listing.saves:
        written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(save.created_unix_s))
        cut = "consistent" if save.consistent else "chunked"
        style = "red" if save.unusable else ""
        table.add_row(save.save_id, count(save.samples), size(save.bytes), written, cut, save.parent or "", style=style)
    faults = [Text(f"{save.save_id}: {save.unusable}", style="red") for save in listing.saves if save.unusable]
    faults += [Text(f"{save_id}: {fault}", style="red") for save_id, fault in listing.damaged.items()]
    gone = [Text(f"{save_id} is no save: {fault}", style="yellow") for save_id, fault in listing.incomplete.items()]
    return Group(f"run {listing.run} in {listing.url}: {len(listing.saves)} saves", table, *faults, *gone)


def save_view(view: SaveView) -> RenderableType:
    """Tables, shards and other state of one save."""
    continues = f", continues {view.parent}" if view.parent else ""
    cut = "one cut of everything" if view.consistent else "every chunk its own cut"
    head = f"{view.save_id} of run {view.run}: {count(view.samples)} samples, {size(view.bytes)}, {cut}{continues}"
    tables = _table("table", "rows", "dim", "type", "optimizer", "rows in this save", "as", left=(0, 3, 4, 6))
    for name, table in view.tables.items():
        figures = (count(table.rows), str(table.dim), table.dtype, table.optimizer, count(table.saved_rows))
        tables.add_row(name, *figures, ", ".join(table.encodings))
    shards = _table("shard", "files", "size", "rows", "pieces", left=(4,))
    for shard_id, shard in view.shards.items():
        pieces = "\n".join(shard.pieces)
        shards.add_row(str(shard_id), str(shard.files), size(shard.bytes), count(shard.rows), pieces)
    states = _table("state", "size")
    for name, value in view.states.items():
        states.add_row(name, size(value))
    parts: list[RenderableType] = [Text(head), tables, shards]
    if view.states:
        parts.append(states)
    if view.extra:
        parts.append(Text(f"also recorded: {', '.join(view.extra)}"))
    return Group(*parts)


def verify_view(report: VerifyReport) -> RenderableType:
    """One line a save, then every fault."""
    table = _table("save", "files", "size", "")
    for save in report.saves:
        state, style = ("ok", "green") if save.unusable is None else ("not usable", "bold red")
        table.add_row(save.save_id, str(save.files), size(save.bytes), Text(state, style=style))
    faults = [
        Text(fault, style="red") for save in report.saves for fault in save.faults or filter(None, [save.unusable])
    ]
    faults += [Text(f"{save_id}: {fault}", style="red") for save_id, fault in report.damaged.items()]
    if report.timelines:
        faults.append(Text(report.timelines, style="red"))
    gone = f"; never completed, ignored: {', '.join(report.incomplete)}" if report.incomplete else ""
    last = f"a restore takes {report.newest or 'none'}, a full recovery {report.newest_exact or 'none'}{gone}"
    return Group(table, *faults, Text(last))


def export_view(report: ExportReport) -> RenderableType:
    """What was written and how to load it."""
    dense = f"dense part from state {report.dense_state}" if report.dense_state else "no dense part"
    what = f"tables {', '.join(report.tables)}; {dense}; {report.dtype}, {size(report.bytes)}"
    load = (
        f'model.load_state_dict(torch.load("{report.path}", weights_only=True))'
        if report.format == "torchrec"
        else f'model.load_state_dict(safetensors.torch.load_file("{report.path}"))'
    )
    return Group(Text(f"{report.path}: {report.save_id} at {count(report.samples)} samples: {what}"), Text(load))


def _table(*columns: str, left: tuple[int, ...] = (0,)) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index in left else "right", no_wrap=index == 0)
    return table
