"""The tables a command ends with: a run's summary and a placement."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from services.cli.saves import saves_parts
from services.cli.units import count, number, percentages, size
from services.placement_report import PlacementReport
from services.summary import CheckpointSummary, Failure, Metrics, Phases, Pls, PredictionSummary, Summary

_STATE_STYLE = {"SUCCEEDED": "bold green", "FAILED": "bold red", "CANCELLED": "bold yellow"}


def summary_view(summary: Summary) -> RenderableType:
    """Quality, samples, speed, phases and failures of a finished run."""
    return Group(*_summary_parts(summary))


def placement_view(report: PlacementReport) -> RenderableType:
    """Every table's placement and memory, every node's memory against its budget, and when to save what."""
    tables = _table("table", "rows", "dim", "placement", "shards", "memory", left=(0, 3, 4))
    for table in report.tables:
        shards = _ranges(table.shard_ids)
        cells = (table.table, count(table.rows), str(table.dim), table.placement, shards, size(table.total_bytes))
        tables.add_row(*cells)
    rows = sum(table.rows for table in report.tables)
    tables.add_section()
    tables.add_row("total", count(rows), "", "", "", size(report.total_bytes))
    nodes = _table("node", "shards", "rows", "needed", "budget", "used", left=(0, 1))
    for node in report.nodes:
        used = node.needed_bytes / node.budget_bytes
        style = "" if node.needed_bytes <= node.budget_bytes else "bold red"
        shards = _ranges(node.shard_ids)
        memory = (size(node.needed_bytes), size(node.budget_bytes), f"{used:.1%}")
        nodes.add_row(node.node, shards, count(node.rows), *memory, style=style)
    saves = saves_parts(report.saves) if report.saves else ()
    return Group(tables, nodes, *(Text(warning, style="yellow") for warning in report.warnings), *saves)


def _ranges(ids: tuple[int, ...]) -> str:
    """``0–29, 31``; two neighbours stay ``0, 1``."""
    runs: list[list[int]] = []
    for shard_id in sorted(ids):
        if runs and shard_id == runs[-1][-1] + 1:
            runs[-1].append(shard_id)
        else:
            runs.append([shard_id])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _summary_parts(summary: Summary) -> Iterator[RenderableType]:
    yield Text.assemble("run ", (summary.run, "bold"), "  ", (summary.state, _STATE_STYLE[summary.state]))
    if summary.error:
        yield Text(summary.error, style="red")
    if summary.metrics:
        yield _quality(summary, summary.metrics)
    yield _facts(summary)
    if summary.phases_s:
        yield _phases(summary.phases_s)
    if summary.failures:
        yield _failures(summary.failures)


def _quality(summary: Summary, metrics: Metrics) -> Table:
    table = _table("quality", "AUC", "NE", "logloss", "accuracy", "calibration", "eval samples")
    table.add_row("final", *_metric_cells(metrics))
    if summary.best:
        table.add_row(f"best, at {count(summary.best.at_samples)} samples", *_metric_cells(summary.best))
    if metrics.progressive_logloss is not None:
        table.add_row("progressive (training rows)", "", "", number(metrics.progressive_logloss), "", "", "")
    return table


def _metric_cells(metrics: Metrics) -> list[str]:
    figures = (metrics.auc, metrics.ne, metrics.logloss, metrics.accuracy, metrics.calibration)
    return [*map(number, figures), count(metrics.eval_samples)]


def _facts(summary: Summary) -> Table:
    samples = summary.samples
    repeated = "repeats unknown" if samples.repeated is None else f"{count(samples.repeated)} repeated"
    extra = [repeated, f"{count(samples.lost)} lost", f"{count(samples.skipped)} skipped"]
    facts = Table.grid(padding=(0, 2))
    facts.add_row("samples", f"{count(samples.trained)} trained, {', '.join(extra)}")
    facts.add_row("rejected lines", count(samples.rejected_lines))
    if summary.predictions:
        facts.add_row("predictions", _predictions(summary.predictions))
    speed = summary.throughput_samples_per_s
    facts.add_row("throughput", "too short to measure" if speed is None else f"{count(speed)} samples/s (steady state)")
    startup = "" if summary.startup_s is None else f", of which start-up {summary.startup_s:.1f} s"
    facts.add_row("wall time", f"{summary.wall_s:.1f} s{startup}")
    if summary.sync and summary.sync.mode != "none":
        sync = summary.sync
        gap = number(sync.avg_gap, 1)
        facts.add_row("sync", f"{sync.mode} {sync.algorithm}, {count(sync.syncs)} syncs, {gap} iterations apart")
    if summary.shards:
        resident = max(shard.peak_rss_bytes for shard in summary.shards)
        held = max(shard.rows_bytes + shard.optimizer_bytes for shard in summary.shards)
        facts.add_row("shard memory", f"{size(resident)} resident at most, {size(held)} of rows and optimizer state")
    if summary.checkpoint:
        facts.add_row("saves", _saves(summary.checkpoint))
    if summary.pls:
        facts.add_row("quality budget", _budget(summary.pls))
    return facts


def _saves(saves: CheckpointSummary) -> str:
    counts = {"full": saves.full_saves, "priority": saves.priority_saves, "delta": saves.delta_saves}
    taken = ", ".join(f"{number} {kind}" for kind, number in counts.items() if number) or "none"
    return f"{taken}; {size(saves.bytes)}, training held up {saves.stall_s:.2f} s; strategy {saves.strategy}"


def _budget(pls: Pls) -> str:
    effective = "not counted" if pls.effective is None else f"{pls.effective:.3g}"
    left = max(0.0, pls.budget - pls.spent)
    return f"PLS {pls.spent:.3g} of {pls.budget:g} spent (effective {effective}), {left:.3g} left"


def _predictions(found: PredictionSummary) -> str:
    broken = f", {count(found.not_finite_rows)} NaN" if found.not_finite_rows else ""
    rows = (
        f"{count(found.rows)} rows of {count(found.files)} files, {count(found.rejected_lines)} lines rejected{broken}"
    )
    return f"{rows}; {count(found.parts)} Parquet files in {found.directory}/ of the run directory"


def _phases(phases: Phases) -> Table:
    seconds: dict[str, float] = phases.model_dump()
    shares = percentages(seconds)
    table = _table("phase", "seconds", "share")
    for name, value in seconds.items():
        table.add_row(name.replace("_", " "), f"{value:.1f}", f"{shares[name]:.1f} %")
    table.add_section()
    table.add_row("all threads", f"{sum(seconds.values()):.1f}", f"{sum(shares.values()):.1f} %")
    return table


def _failures(failures: tuple[Failure, ...]) -> Table:
    table = _table(
        "failure", "cause", "at samples", "recovery", "detect", "reschedule", "load", "replay", "PLS", left=(0, 1)
    )
    for failure in failures:
        seconds = (failure.detect_s, failure.reschedule_s, failure.load_s, failure.replay_s)
        cells = (f"{failure.role} {failure.index}", failure.cause, count(failure.at_samples), failure.mode)
        pls = "–" if failure.pls is None else f"{failure.pls:.4%}"
        table.add_row(*cells, *("–" if value is None else f"{value:.2f} s" for value in seconds), pls)
    return table


def _table(*columns: str, left: tuple[int, ...] = (0,)) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index in left else "right", no_wrap=index == 0)
    return table
