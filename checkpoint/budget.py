"""Keeping the quality budget while a run goes: the longest interval that it allows, and who may still spend."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from checkpoint.pls import LossShares, partial_interval_s

RecoveryMode = Literal["partial", "full"]

_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Bound:
    """An interval, and in words what keeps it from being longer."""

    interval_s: float
    by: str


def longest_interval(
    left_pls: float, mtbf_s: float, shares: LossShares, run_s: float | None = None, done_s: float = 0.0
) -> Bound:
    """The longest interval of saving everything that keeps what is left of the budget, ``left_pls`` > 0.

    The least of three: the paper's interval, so that the failures to expect in the rest of the run spend no more than
    is left; the interval at whose end the worst single loss spends no more (without it one failure of a short run
    could spend the budget several times over); the length of the run.

    Args:
        left_pls: budget - spent.
        mtbf_s: mean time between failures that lose rows.
        shares: what one of them loses.
        run_s: useful length of the whole run, ``None``: not known, and only the paper's interval counts.
        done_s: how much of it is done.
    """
    paper_s = partial_interval_s(left_pls, mtbf_s, shares.mean)
    if run_s is None:
        return Bound(paper_s, "the expected losses")
    rest_s = run_s - done_s
    bounds = (
        Bound(paper_s * run_s / rest_s if rest_s > 0.0 else math.inf, "the expected losses"),
        Bound(left_pls * run_s / shares.worst, "the worst single loss"),
        Bound(run_s, "the length of the run"),
    )
    return min(bounds, key=lambda bound: bound.interval_s)


@dataclass(frozen=True, slots=True)
class Recovery:
    """How to recover from one failure, and why."""

    mode: RecoveryMode
    reason: str


def affordable(pls: float, spent: float, budget: float) -> Recovery:
    """Partial recovery if its PLS still fits the budget, else full, which spends nothing."""
    left = budget - spent
    if pls <= left + _ROUNDING:
        return Recovery("partial", f"costs PLS {pls:.4g} of the {left:.4g} left (checkpoint.pls_budget={budget:g})")
    return Recovery(
        "full",
        f"partial recovery would cost PLS {pls:.4g}, but {max(0.0, left):.4g} of checkpoint.pls_budget={budget:g} is "
        "left: everybody returns to the last consistent save",
    )
