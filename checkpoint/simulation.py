"""A run's saves and failures against the save policy, without rows: what the policy would spend and cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from checkpoint.manifest import SaveKind
from checkpoint.mtbf import believed_mtbf_s
from checkpoint.pls import PlsAccount, ShardLoss, charge, covered_samples
from checkpoint.save_policy import SaveHistory, SavePlan, SavePolicy, Situation

_SAMPLES = 1_000_000_000
"""Of the simulated run; only portions of it matter."""


@dataclass(frozen=True, slots=True)
class SimulatedFailure:
    """Shards that lose their rows at ``at_s`` of useful time."""

    at_s: float
    shard_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What happened. Times in seconds; overheads come on top of ``run_s`` of useful time.

    ``plans`` are the different plans in turn, with the useful time at which each began.
    """

    run_s: float
    saving_s: float
    recovering_s: float
    lost_work_s: float
    pls: float
    full_saves: int
    priority_saves: int
    partial_recoveries: int
    full_recoveries: int
    plans: tuple[tuple[float, SavePlan], ...]

    @property
    def overhead(self) -> float:
        """Portion of useful time."""
        return (self.saving_s + self.recovering_s + self.lost_work_s) / self.run_s


def simulate(
    policy: SavePolicy,
    start: Situation,
    shares: Sequence[float],
    failures: Sequence[SimulatedFailure],
    *,
    enforce: bool = True,
) -> SimulatedRun:
    """Play ``failures`` (in order of time) against ``policy``, on the clock of useful time as the overhead model does.

    Args:
        policy: plans, orders saves, chooses recoveries.
        start: the situation at first; its length of the run must be known.
        shares: each shard's portion of all weights.
        failures: what loses rows, and when.
        enforce: plan again after every failure, with what it spent and taught, and refuse what the budget does not
            cover. Without it the first plan stays and every recovery is of its mode, as the formulas assume.
    """
    return _Simulation(policy, start, shares, enforce).run(failures)


class _Simulation:
    def __init__(self, policy: SavePolicy, start: Situation, shares: Sequence[float], enforce: bool) -> None:
        if start.run_s is None:
            raise ValueError("a simulated run needs its length: Situation.run_s is None")
        self._policy, self._start, self._shares, self._enforce = policy, start, shares, enforce
        self._run_s = start.run_s
        self._plan = policy.plan(start)
        self._plans = [(0.0, self._plan)]
        self._history = SaveHistory()
        self._saves: list[tuple[SaveKind, int]] = []
        self._account = PlsAccount(_SAMPLES, 1)
        self._saving_s = self._recovering_s = self._lost_s = 0.0
        self._recoveries = {"partial": 0, "full": 0}

    def run(self, failures: Sequence[SimulatedFailure]) -> SimulatedRun:
        for count, failure in enumerate(failures, 1):
            if failure.at_s >= self._run_s:
                break
            self._save_until(failure.at_s)
            self._fail(failure, count)
        self._save_until(self._run_s)
        kinds = [kind for kind, _ in self._saves]
        return SimulatedRun(
            self._run_s,
            self._saving_s,
            self._recovering_s,
            self._lost_s,
            self._account.spent,
            kinds.count("full"),
            kinds.count("priority"),
            self._recoveries["partial"],
            self._recoveries["full"],
            tuple(self._plans),
        )

    def _save_until(self, end_s: float) -> None:
        now_s = self._saves[-1][1] / _SAMPLES * self._run_s if self._saves else 0.0
        while (due_s := max(now_s, self._policy.next_save_s(self._plan, self._history))) < end_s:
            order = self._policy.due(self._plan, self._history, due_s)
            assert order is not None
            now_s = due_s
            fraction = self._policy.config.priority_fraction if order.kind == "priority" else 1.0
            self._saving_s += fraction * self._start.costs.save_s
            self._saves.append((order.kind, round(now_s / self._run_s * _SAMPLES)))
            self._history = SaveHistory(
                now_s,
                now_s if order.kind == "full" else self._history.last_full_s,
                now_s if order.consistent else self._history.last_consistent_s,
                self._covered_samples / _SAMPLES * self._run_s,
            )

    def _fail(self, failure: SimulatedFailure, count: int) -> None:
        costs, now_s = self._start.costs, failure.at_s
        lost = max(0, round(now_s / self._run_s * _SAMPLES) - self._covered_samples)
        losses = [ShardLoss(shard_id, self._shares[shard_id], lost) for shard_id in failure.shard_ids]
        mode = self._plan.mode
        if self._enforce:
            mode = self._policy.recovery(self._plan, charge(losses, _SAMPLES), self._account.spent).mode
        self._recoveries[mode] += 1
        if mode == "partial":
            self._account.record(losses)
            self._recovering_s += costs.partial_recovery_s
        else:
            self._recovering_s += costs.full_recovery_s
            self._lost_s += now_s - (self._history.last_consistent_s or 0.0)
        if self._enforce:
            self._replan(now_s, count)

    @property
    def _covered_samples(self) -> int:
        return covered_samples(self._saves, self._policy.config.priority_fraction)

    def _replan(self, now_s: float, failures: int) -> None:
        now = replace(
            self._start,
            mtbf_s=believed_mtbf_s(self._start.mtbf_s, failures, now_s),
            done_s=now_s,
            spent_pls=self._account.spent,
        )
        plan = self._policy.plan(now)
        if plan.mode != self._plan.mode or not math.isclose(plan.interval_s, self._plan.interval_s):
            self._plans.append((now_s, plan))
        self._plan = plan
