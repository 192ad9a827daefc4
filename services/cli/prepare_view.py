"""How ``penumbra prepare`` shows its progress and its report."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from services.cli.units import count, size
from services.prepare.report import PrepareReport

_LINE_EVERY_S: Final = 5.0
_SHOWN: Final = {"counting": ("counting rows", size), "writing": ("writing Parquet", count)}


class PrepareProgress:
    """A context manager to call with (stage, done, total): a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        self._console = Console(file=stream, soft_wrap=not stream.isatty(), highlight=False, quiet=quiet)
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._task = self._bars.add_task("", total=None)
        self._line: tuple[str, float] = ("", 0.0)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Shows the newest state."""
        title, unit = _SHOWN[stage]
        self._bars.update(self._task, description=title, completed=done, total=total)
        now_s = time.monotonic()
        if self._bars.disable and (stage != self._line[0] or done == total or now_s - self._line[1] >= _LINE_EVERY_S):
            self._line = (stage, now_s)
            share = done / total if total else 1.0
            self._console.print(f"{title} | {unit(done)} of {unit(total)} ({share:.0%})", markup=False)


def prepare_view(report: PrepareReport, out: Path) -> RenderableType:
    """Totals, then missing fields and distinct values of every column."""
    again = f", {report.resumed_files} of them from before" if report.resumed_files else ""
    facts = [
        f"{count(report.rows)} rows in {len(report.files)} files in {out}{again}: {size(report.bytes)}, "
        f"{count(report.rows_per_s)} rows/s",
        f"{count(report.rejected_lines)} lines rejected"
        + (f", see {out / 'rejected.jsonl'}" * (report.rejected_lines > 0)),
    ]
    if report.vocabulary:
        kept = sum(report.vocabulary.values.values())
        facts.append(f"vocabularies of {count(kept)} values in all: data.vocabulary={report.vocabulary.directory}")
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("column", "missing", "share", "distinct"):
        table.add_column(column, justify="left" if column == "column" else "right")
    for name, column_report in report.columns.items():
        share = column_report.missing / report.rows if report.rows else 0.0
        about = "" if column_report.exact else "~"
        table.add_row(name, count(column_report.missing), f"{share:.1%}", about + count(column_report.cardinality))
    train = f"train with data.format=parquet data.train={out}"
    return Group(*map(Text, facts), table, Text(train, style="dim"))
