"""Progress on stderr: a live display on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from services.cli.tables import placement_view
from services.cli.units import count, number, percentages
from services.progress import Progress

_LINE_EVERY_S = 5.0


class LiveProgress:
    """A context manager to call with every ``Progress``.

    Args:
        stream: where to draw, normally stderr.
        quiet: draw nothing.
        clock: seconds, monotonic.
    """

    def __init__(self, stream: TextIO, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = Console(file=stream, soft_wrap=not stream.isatty(), highlight=False)
        self._quiet = quiet
        self._clock = clock
        self._live = Live(console=self._console, transient=True, auto_refresh=False) if self._terminal else None
        self._line_at_s = -_LINE_EVERY_S
        self._shown = ("", "")

    @property
    def _terminal(self) -> bool:
        return self._console.is_terminal and not self._quiet

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Shows the newest state."""
        if self._quiet:
            return
        for message in progress.messages:
            self._console.print(message, markup=False)
        if progress.placement:
            self._console.print(placement_view(progress.placement))
        if self._live:
            self._live.update(_panel(progress), refresh=True)
        else:
            self._plain(progress)

    def _plain(self, progress: Progress) -> None:
        now_s = self._clock()
        stage = (progress.state, progress.stage)
        if stage != self._shown or now_s - self._line_at_s >= _LINE_EVERY_S:
            self._shown, self._line_at_s = stage, now_s
            self._console.print(line(progress), markup=False)


def line(progress: Progress) -> str:
    """Everything in one line of text."""
    parts = [f"{progress.state} {progress.stage}".strip(), _done(progress)]
    if progress.samples:
        parts.append(_figures(progress))
    if progress.phases:
        parts.append(_phases(progress))
    return " | ".join(filter(None, parts))


def _panel(progress: Progress) -> Group:
    head = Table.grid(padding=(0, 2))
    done, total, _ = _counts(progress)
    bar = ProgressBar(total=total or None, completed=done, width=30)
    head.add_row(Text(progress.stage or progress.state, style="bold"), bar, _done(progress))
    roles = f"{progress.trainers} trainers, {progress.shards} shards"
    body = [Text(f"{_figures(progress)}   {roles}")]
    if progress.phases:
        body.append(Text(_phases(progress), style="dim"))
    return Group(head, *body)


def _counts(progress: Progress) -> tuple[int, int, str]:
    """What is counted at this stage: done, in all, of what."""
    if progress.predicted_rows:
        return progress.predicted_rows, progress.total_predicted_rows, "rows predicted"
    return progress.samples, progress.total_samples, "samples"


def _done(progress: Progress) -> str:
    done, total, what = _counts(progress)
    if not total:
        return f"{count(done)} {what}" if done else ""
    left = _remaining(total - done, progress.throughput_samples_per_s)
    return f"{count(done)} of {count(total)} {what} ({done / total:.0%}){left}"


def _remaining(left: int, per_s: float) -> str:
    if left <= 0 or per_s <= 0:
        return ""
    minutes, seconds = divmod(round(left / per_s), 60)
    return f", {minutes}:{seconds:02d} left"


def _figures(progress: Progress) -> str:
    speed = f"{count(progress.throughput_samples_per_s)} samples/s"
    quality = (("loss", progress.loss), ("NE", progress.ne), ("AUC", progress.auc))
    return "  ".join([speed, *(f"{name} {number(value)}" for name, value in quality if value is not None)])


def _phases(progress: Progress) -> str:
    shares = percentages(progress.phases)
    return "  ".join(f"{name.replace('_', ' ')} {share:.0f} %" for name, share in shares.items())
