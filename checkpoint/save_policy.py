"""When to save what, and how to recover lost rows: a pure decision on costs, failures and the quality budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from checkpoint.budget import Bound, Recovery, RecoveryMode, affordable, longest_interval
from checkpoint.checkpoint_config import CheckpointConfig, Strategy
from checkpoint.overhead import (
    Costs,
    Overhead,
    break_even_interval_s,
    full_interval_s,
    full_overhead,
    partial_overhead,
)
from checkpoint.pls import LossShares, exact_expected_pls, expected_pls

_EARLY = 1e-9
_LEAST_FREE_S = 60.0
_AGE_SAVES = 20
"""A consistent save for its age costs at most a twentieth of the time."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a plan depends on besides the settings.

    Attributes:
        costs: of one save and one recovery.
        mtbf_s: believed mean time between failures that lose rows.
        shares: what one of them loses.
        run_s: useful length of the whole run; ``None``: not known.
        done_s: how much of it is done.
        spent_pls: by partial recoveries so far.
    """

    costs: Costs
    mtbf_s: float
    shares: LossShares
    run_s: float | None = None
    done_s: float = 0.0
    spent_pls: float = 0.0

    def __post_init__(self) -> None:
        if not (self.mtbf_s > 0.0 and self.done_s >= 0.0 and self.spent_pls >= 0.0 and (self.run_s or 1.0) > 0.0):
            raise ValueError(f"times and what is spent cannot be negative, nor a mean time or a run 0: {self}")

    @property
    def rest_s(self) -> float | None:
        """What is left of the run; none of one that takes longer than was expected."""
        return None if self.run_s is None else max(0.0, self.run_s - self.done_s)


@dataclass(frozen=True, slots=True)
class Option:
    """One way to save and recover, with its numbers.

    Attributes:
        interval_s: of a save of everything, or of a round of 1/r priority saves.
        bounded_by: what sets it.
        overhead: portions of useful time.
        expected_pls: first order, of the rest of the run (of all of it, when its length is not known).
        exact_expected_pls: summed over the intervals; ``None`` when the length of the run is not known.
    """

    interval_s: float
    bounded_by: str
    overhead: Overhead
    expected_pls: float
    exact_expected_pls: float | None


@dataclass(frozen=True, slots=True)
class SavePlan:
    """What to do until the next plan.

    Attributes:
        mode: of recovering lost rows.
        strategy: what is saved; never ``auto``.
        interval_s: T_save.
        save_every_s: seconds between saves: r·T_save for ``cpr_*``, else T_save.
        full_every_s: seconds between full, consistent saves besides; inf: only the first.
        consistent_age_s: age at which a consistent save is taken whatever else is due; inf: none.
        reason: why this one, with the numbers.
        full: the best full recovery can do.
        partial: the best partial recovery can do within the budget; ``None``: nothing is left of it.
    """

    mode: RecoveryMode
    strategy: Strategy
    interval_s: float
    save_every_s: float
    full_every_s: float
    reason: str
    full: Option
    partial: Option | None
    consistent_age_s: float = math.inf


@dataclass(frozen=True, slots=True)
class SaveHistory:
    """When saves of this lineage were cut, seconds of the run's useful time; ``None``: there is none yet.

    ``covered_s``: the last save of everything, a full save or the end of a round of priority saves
    (``checkpoint.pls.covered_samples``). ``deltas``: delta saves since the last full one.
    """

    last_s: float | None = None
    last_full_s: float | None = None
    last_consistent_s: float | None = None
    covered_s: float | None = None
    deltas: int = 0


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """A save that is due."""

    kind: Literal["full", "priority", "delta"]
    consistent: bool


class SavePolicy:
    """Decides by its arguments alone; keeps nothing but the settings."""

    def __init__(self, config: CheckpointConfig, optimizer: str = "exact_sgd") -> None:
        """``optimizer``: of the tables; it decides which priority ``auto`` takes.

        Raises:
            ValueError: ``cpr_adagrad`` without an Adagrad.
        """
        adagrad = optimizer != "exact_sgd"
        if config.strategy == "cpr_adagrad" and not adagrad:
            raise ValueError(
                "checkpoint.strategy=cpr_adagrad needs embedding.optimizer to be an Adagrad, not exact_sgd"
            )
        self.config = config
        self._auto: Strategy = "cpr_adagrad" if adagrad else "cpr_mfu"

    @property
    def tracked_strategy(self) -> Strategy:
        """The strategy whose tracker a shard keeps all along, since the mode may change while the run goes."""
        return self._auto if self.config.strategy == "auto" else self.config.strategy

    @property
    def extra_full_saves(self) -> float:
        """Full saves per round that ``cpr_*`` writes besides its priority saves: bytes of all rows, each."""
        every = self.config.full_every_rounds
        return 1.0 / every if every and self.config.strategy not in ("full", "partial_vanilla") else 0.0

    def plan(self, now: Situation) -> SavePlan:
        """The cheapest way within the budget (CPR's rule), or the strategy that was asked for while it keeps within."""
        full, partial = self._full(now), self._partial(now)
        strategy, reason = self._choose(now, full, partial)
        if strategy == "full" or partial is None:
            interval_s, reason = self._while_free(now, full.interval_s, reason)
            return SavePlan("full", "full", interval_s, interval_s, interval_s, reason, full, partial)
        rounds = self.config.full_every_rounds
        interval_s, reason = self._while_free(now, partial.interval_s, reason)
        return SavePlan(
            "partial",
            strategy,
            interval_s,
            interval_s * (1.0 if strategy == "partial_vanilla" else self.config.priority_fraction),
            interval_s * rounds if rounds else math.inf,
            reason,
            full,
            partial,
            self._consistent_age_s(now),
        )

    def next_save_s(self, plan: SavePlan, history: SaveHistory) -> float:
        """When the next save is due, seconds of useful time; may lie in the past."""
        if plan.mode == "full":
            return (history.last_consistent_s or 0.0) + plan.save_every_s
        aged_s = (history.last_consistent_s or 0.0) + plan.consistent_age_s
        return min((history.last_s or 0.0) + plan.save_every_s, _uncovered_until_s(plan, history), aged_s)

    def due(self, plan: SavePlan, history: SaveHistory, now_s: float) -> SaveOrder | None:
        """The save that is due, if any.

        The first of a lineage is full, since others continue one. So is one when rows are older than the plan allows,
        as after it was tightened: a round of priority saves would come too late.
        """
        if now_s < self.next_save_s(plan, history) * (1.0 - _EARLY):
            return None
        delta = plan.strategy in ("full", "partial_vanilla") and history.deltas < self.config.deltas
        delta = delta and history.last_full_s is not None
        if plan.mode == "full":
            return SaveOrder("delta" if delta else "full", consistent=True)
        last_s = history.last_consistent_s if plan.strategy == "partial_vanilla" else history.last_full_s
        consistent = last_s is None or now_s >= (1.0 - _EARLY) * min(
            last_s + plan.full_every_s,
            _uncovered_until_s(plan, history),
            (history.last_consistent_s or 0.0) + plan.consistent_age_s,
        )
        if plan.strategy == "partial_vanilla":
            return SaveOrder("delta" if delta else "full", consistent)
        return SaveOrder("full", consistent=True) if consistent else SaveOrder("priority", consistent=False)

    def recovery(self, plan: SavePlan, pls: float, spent_pls: float) -> Recovery:
        """How to recover from a failure whose partial recovery would cost ``pls``."""
        if plan.mode == "full":
            return Recovery("full", plan.reason)
        return affordable(pls, spent_pls, self.config.pls_budget)

    def _while_free(self, now: Situation, interval_s: float, reason: str) -> tuple[float, str]:
        """The interval, or a shorter one while saves cost less than ``checkpoint.free_overhead`` of the time."""
        free = self.config.free_overhead
        if not free or self.config.interval_s is not None:
            return interval_s, reason
        free_s = max(_LEAST_FREE_S, now.costs.save_s * (1.0 + self.extra_full_saves) / free)
        if interval_s <= free_s:
            return interval_s, reason
        return (
            free_s,
            f"{reason}; saved every {_hours(free_s)}, which costs {100 * free:.2g} % (checkpoint.free_overhead)",
        )

    def _full(self, now: Situation) -> Option:
        bound = self._overridden(Bound(full_interval_s(now.costs.save_s, now.mtbf_s), "sqrt(2·save·MTBF)"), now)
        if now.run_s is not None and bound.interval_s > now.run_s:
            bound = Bound(now.run_s, "the length of the run")
        bound = Bound(max(bound.interval_s, now.costs.save_s, 1.0), bound.by)
        return Option(bound.interval_s, bound.by, full_overhead(bound.interval_s, now.costs, now.mtbf_s), 0.0, 0.0)

    def _partial(self, now: Situation) -> Option | None:
        left = self.config.pls_budget - now.spent_pls
        if left <= 0.0:
            return None
        bound = longest_interval(left, now.mtbf_s, now.shares, now.run_s, now.done_s)
        bound = min(bound, self._overridden(bound, now), key=lambda one: one.interval_s)
        rest, exact = 1.0, None
        if now.run_s is not None and now.rest_s is not None:
            rest = now.rest_s / now.run_s
            exact = exact_expected_pls(bound.interval_s, now.mtbf_s, now.shares.mean, now.run_s, now.rest_s)
        overhead = partial_overhead(bound.interval_s, now.costs, now.mtbf_s, self.extra_full_saves)
        aged = self._aging(now)
        return Option(
            bound.interval_s,
            bound.by,
            replace(overhead, saving=overhead.saving + aged),
            expected_pls(bound.interval_s, now.mtbf_s, now.shares.mean) * rest,
            exact,
        )

    def _overridden(self, bound: Bound, now: Situation) -> Bound:
        given = self.config.interval_s
        if given is None:
            return bound
        least_s = self._least_s(now)
        if given < least_s:
            return Bound(least_s, f"checkpoint.interval_s={given:g}, lifted to what saving everything takes")
        return Bound(given, "checkpoint.interval_s")

    def _least_s(self, now: Situation) -> float:
        """What saving everything takes, with the full saves besides."""
        return max(1.0, now.costs.save_s * (1.0 + self.extra_full_saves))

    def _consistent_age_s(self, now: Situation) -> float:
        """``checkpoint.max_consistent_age_s`` where saving so often is cheap enough."""
        age_s = self.config.max_consistent_age_s
        return math.inf if age_s is None or age_s <= _AGE_SAVES * now.costs.save_s else age_s

    def _aging(self, now: Situation) -> float:
        """Portion of the time that saves for their age cost, if all of them come on top; where every save is of
        everything they do not.
        """
        vanilla = self.config.strategy == "partial_vanilla"
        return 0.0 if vanilla else now.costs.save_s / self._consistent_age_s(now)

    def _choose(self, now: Situation, full: Option, partial: Option | None) -> tuple[Strategy, str]:
        wanted, budget = self.config.strategy, self.config.pls_budget
        if wanted == "full":
            return "full", "checkpoint.strategy=full"
        spent = f"{now.spent_pls:.4g} of checkpoint.pls_budget={budget:g} is spent"
        if partial is None:
            return "full", f"{spent}: only full recovery spends no more"
        most = full.overhead.total - self._aging(now)
        tight_s = break_even_interval_s(now.costs, now.mtbf_s, most, self.extra_full_saves)
        numbers = (
            f"partial recovery costs {_percent(partial)} at an interval of {_hours(partial.interval_s)} "
            f"(set by {partial.bounded_by}), full recovery {_percent(full)} at {_hours(full.interval_s)}"
        )
        if wanted == "auto":
            if partial.interval_s > tight_s:
                return self._auto, numbers
            return "full", f"{spent}; {numbers}" if now.spent_pls else numbers
        least_s = now.costs.save_s * (1.0 + self.extra_full_saves)
        if partial.interval_s < least_s:
            return "full", (
                f"{spent}; the rest allows an interval of {partial.interval_s:.3g} s, but saving everything takes "
                f"{least_s:.3g} s"
            )
        return wanted, f"checkpoint.strategy={wanted}; {numbers}"


def _uncovered_until_s(plan: SavePlan, history: SaveHistory) -> float:
    """When everything should have been saved again, and half a save later: saves are never exactly on time."""
    return (history.covered_s or 0.0) + plan.interval_s + plan.save_every_s / 2


def _percent(option: Option) -> str:
    return f"{100 * option.overhead.total:.3g} %"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f} h" if seconds >= 600 else f"{seconds:.1f} s"
