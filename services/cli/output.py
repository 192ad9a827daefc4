"""Keeps stdout for the result of a command."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from rich.console import Console, RenderableType

_PIPE_WIDTH = 110


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Sends to stderr whatever libraries, Ray's log relay and child processes print to stdout meanwhile."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def show(view: RenderableType, json_text: str, *, as_json: bool) -> None:
    """Prints the result: one JSON value, or the view for people."""
    if as_json:
        print(json_text)
    else:
        width = None if sys.stdout.isatty() else _PIPE_WIDTH  # rich would take 80 columns and cut tables short
        Console(file=sys.stdout, highlight=False, width=width).print(view)
