"""Quarantined lines against what is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from trainer.data.block import RejectedLine

LISTED: Final = 10
"""How many lines a failure names."""


class TooManyBadLinesError(ValueError):
    """More malformed lines than ``data.max_bad_lines`` allows."""


def too_many(lines: Sequence[RejectedLine], rejected: int, allowed: int, rows: int) -> str:
    """The message of a failure.

    Args:
        lines: some of the rejected ones; the first ten by file and line are listed.
        rejected: how many there are.
        allowed: how many there may be.
        rows: of the whole data.
    """
    return (
        f"{rejected} input lines were rejected, max_bad_lines allows {allowed} of {rows} rows; the first:"
        f"{list_first(lines)}"
    )


def list_first(lines: Iterable[RejectedLine]) -> str:
    """The first ten by file and line, each on an indented line of its own."""
    first = sorted(lines, key=lambda line: (line.path, line.line))[:LISTED]
    return "".join(f"\n  {x.path}:{x.line}: {x.column}: found {x.found}, expected {x.expected}" for x in first)
