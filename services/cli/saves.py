"""``penumbra plan``'s lines about saves and recovery."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from services.cli.units import size
from services.saves_report import SaveOption, SavesReport


def saves_parts(report: SavesReport) -> Iterator[RenderableType]:
    """Both ways to recover with their intervals and costs, then what was chosen, why, and what it writes."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("recovery", "interval", "set by"):
        table.add_column(column, no_wrap=True)
    for column in ("saving", "recovering", "lost work", "overhead", "expected PLS", "exact sum"):
        table.add_column(column, justify="right")
    for mode, option in (("full", report.full), ("partial", report.partial)):
        table.add_row(mode, *_cells(option), style="bold" if mode == report.mode else "")
    yield Text()
    yield table
    yield Text.assemble("saves: ", (report.strategy, "bold"), f", {_writes(report)}")
    yield Text(f"because {report.reason}")
    yield Text(_assumptions(report))


def duration(seconds: float) -> str:
    """``2.27 h``, ``5.5 min``, ``0.30 s``."""
    if seconds >= 3600:
        return f"{seconds / 3600:.2f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.2f} s"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _cells(option: SaveOption) -> list[str]:
    overhead = option.overhead
    shares = (overhead.saving, overhead.recovering, overhead.lost_work, overhead.total)
    exact = "–" if option.exact_expected_pls is None else f"{option.exact_expected_pls:.4f}"
    return [
        duration(option.interval_s),
        option.bounded_by,
        *map(_percent, shares),
        f"{option.expected_pls:.4f}",
        exact,
    ]


def _writes(report: SavesReport) -> str:
    what = f"{size(report.save_bytes)} every {duration(report.save_every_s)}"
    if not report.strategy.startswith("cpr_"):
        return what
    every = "only at first" if report.full_every_s is None else f"every {duration(report.full_every_s)}"
    return (
        f"{what}; a full save of {size(report.full_bytes)} {every}; priorities of {len(report.prioritized)} tables "
        f"take {size(report.tracker_bytes)} of memory"
    )


def _assumptions(report: SavesReport) -> str:
    costs = report.costs
    mtbf = f"rows are lost every {duration(report.mtbf_s)}"
    mtbf += " (checkpoint.mtbf_s)" if report.mtbf_given else " (assumed; set checkpoint.mtbf_s)"
    run = "a run of unknown length (set checkpoint.expected_run_s)"
    if report.run_s is not None:
        run = f"a run of {duration(report.run_s)}"
    guessed = f"; {', '.join(costs.estimated)} estimated from bytes (checkpoint.costs)" if costs.estimated else ""
    full, partial = costs.load_s + costs.reschedule_s, costs.partial_load_s + costs.partial_reschedule_s
    return (
        f"for {run}, where {mtbf} with one {report.loses}: {report.mean_share:.1%} of them, at worst "
        f"{report.worst_share:.1%}; PLS budget {report.pls_budget:g}; a save costs {duration(costs.save_s)}, loading "
        f"and rescheduling {duration(full)} full and {duration(partial)} partial{guessed}"
    )
