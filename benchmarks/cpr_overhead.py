"""CPR's headline by the policy itself: ``python -m benchmarks.cpr_overhead [--schedules N] [--json]``.

A 56 h run on 8 embedding shards, one row-losing failure in 28 h on average, PLS budget 0.1. The costs of a save (5.5
min) and of a recovery (5 min) are FITTED BY US so that the paper's model gives its published totals; the paper's own
costs are not known. The formulas are evaluated, then random failure schedules are played against the save policy.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from checkpoint.checkpoint_config import CheckpointConfig, Strategy
from checkpoint.overhead import Costs, full_interval_s, full_overhead, partial_overhead
from checkpoint.pls import break_even_pls, exact_expected_pls_of, loss_shares
from checkpoint.save_policy import SavePolicy, Situation
from checkpoint.simulation import SimulatedFailure, SimulatedRun, simulate

HOUR = 3600.0
SHARDS = 8
RUN_S = 56 * HOUR
MTBF_S = 28 * HOUR
COSTS = Costs(save_s=330.0, load_s=150.0, reschedule_s=150.0, partial_load_s=150.0, partial_reschedule_s=150.0)
"""Fitted by us. Partial recovery is charged as much per failure as full recovery, as in the fit."""
FITTED = "costs (save 5.5 min, load + reschedule 5 min) are fitted by us to the paper's totals, not taken from it"
_Z95 = 1.959963984540054


def situation(mtbf_s: float = MTBF_S) -> Situation:
    """The run at its beginning."""
    return Situation(COSTS, mtbf_s, loss_shares([1 / SHARDS] * SHARDS), RUN_S)


def policy(strategy: Strategy, pls_budget: float, full_every_rounds: int | None = None) -> SavePolicy:
    """The product's policy for one line of the table."""
    return SavePolicy(CheckpointConfig(strategy=strategy, pls_budget=pls_budget, full_every_rounds=full_every_rounds))


def schedules(count: int, mtbf_s: float, seed: int) -> list[list[SimulatedFailure]]:
    """``count`` runs' failures: exponential gaps, one random shard each."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        times: list[float] = []
        while (at_s := (times[-1] if times else 0.0) + random.exponential(mtbf_s)) < RUN_S:
            times.append(at_s)
        shard_ids = random.integers(SHARDS, size=len(times)).tolist()
        made.append([SimulatedFailure(at, (shard,)) for at, shard in zip(times, shard_ids, strict=True)])
    return made


def model() -> dict[str, Any]:
    """The formulas at the fixture, by the policy's plans."""
    young_s = full_interval_s(COSTS.save_s, MTBF_S)
    lines = {"full": full_overhead(young_s, COSTS, MTBF_S), "naive partial": partial_overhead(young_s, COSTS, MTBF_S)}
    intervals = {"full": young_s, "naive partial": young_s}
    for budget, every in ((0.1, None), (0.05, None), (0.02, None), (0.1, 4)):
        plan = policy("auto", budget, every).plan(situation())
        assert plan.partial is not None
        name = f"CPR, PLS {budget:g}" + (f", a full save every {every} rounds" if every else "")
        lines[name], intervals[name] = plan.partial.overhead, plan.partial.interval_s
    return {
        name: {
            "interval_h": round(intervals[name] / HOUR, 2),
            "saving": round(line.saving, 5),
            "recovering": round(line.recovering, 5),
            "lost_work": round(line.lost_work, 5),
            "total": round(line.total, 5),
        }
        for name, line in lines.items()
    }


def monte_carlo(strategy: Strategy, pls_budget: float, count: int, seed: int) -> dict[str, Any]:
    """Play ``count`` schedules without enforcement: mean PLS beside the sum over intervals and the first order."""
    chosen = policy(strategy, pls_budget)
    start = situation()
    plan = chosen.plan(start)
    assert plan.partial is not None
    runs = [
        simulate(chosen, start, [1 / SHARDS] * SHARDS, made, enforce=False) for made in schedules(count, MTBF_S, seed)
    ]
    mean, half = _mean([run.pls for run in runs])
    exact = exact_expected_pls_of(_gaps(strategy, plan.interval_s, plan.save_every_s), MTBF_S, 1 / SHARDS, RUN_S)
    return {
        "strategy": strategy,
        "interval_h": round(plan.interval_s / HOUR, 2),
        "schedules": count,
        "pls": round(mean, 6),
        "pls_95": [round(mean - half, 6), round(mean + half, 6)],
        "exact_sum": round(exact, 6),
        "exact_sum_inside": abs(exact - mean) <= half,
        "first_order": round(plan.partial.expected_pls, 6),
        "first_order_over_pls": round(plan.partial.expected_pls / mean, 3),
        "overhead": round(_mean([run.overhead for run in runs])[0], 5),
    }


def _gaps(strategy: Strategy, interval_s: float, save_every_s: float) -> list[float]:
    """Times between saves of everything: the first save is full, then (priority) one round after another."""
    ends = [save_every_s if strategy.startswith("cpr") else interval_s]
    while ends[-1] + interval_s < RUN_S:
        ends.append(ends[-1] + interval_s)
    ends = [end for end in ends if end < RUN_S]
    return [after - before for before, after in zip([0.0, *ends], [*ends, RUN_S], strict=True)]


def enforced(mtbf_s: float, believed_s: float, count: int, seed: int) -> dict[str, Any]:
    """Play schedules that fail every ``mtbf_s`` when ``believed_s`` is assumed, with the budget enforced and not."""
    chosen = policy("auto", 0.1)
    start = situation(believed_s)
    found: dict[str, Any] = {"mtbf_h": mtbf_s / HOUR, "assumed_h": believed_s / HOUR, "schedules": count}
    for name, enforce in (("not_enforced", False), ("enforced", True)):
        runs = [
            simulate(chosen, start, [1 / SHARDS] * SHARDS, made, enforce=enforce)
            for made in schedules(count, mtbf_s, seed)
        ]
        found[name] = _outcome(runs)
    return found


def _outcome(runs: list[SimulatedRun]) -> dict[str, Any]:
    return {
        "mean_pls": round(_mean([run.pls for run in runs])[0], 5),
        "max_pls": round(max(run.pls for run in runs), 5),
        "over_budget": sum(run.pls > 0.1 + 1e-9 for run in runs),
        "tightened": sum(_tightened(run) for run in runs),
        "switched_to_full": sum(run.plans[-1][1].mode == "full" for run in runs),
        "overhead": round(_mean([run.overhead for run in runs])[0], 5),
    }


def _tightened(run: SimulatedRun) -> bool:
    partial = [plan.interval_s for _, plan in run.plans if plan.mode == "partial"]
    return min(partial) < partial[0]


def _mean(values: list[float]) -> tuple[float, float]:
    """Mean and half of its 95 % confidence interval."""
    return statistics.fmean(values), _Z95 * statistics.stdev(values) / math.sqrt(len(values))


def measure(count: int, seed: int) -> dict[str, Any]:
    """Everything that is printed."""
    return {
        "fitted": FITTED,
        "model": model(),
        "break_even_pls": round(break_even_pls(COSTS.save_s, MTBF_S, 1 / SHARDS), 5),
        "monte_carlo": [
            monte_carlo("partial_vanilla", 0.005, count, seed),
            monte_carlo("partial_vanilla", 0.02, count, seed),
            monte_carlo("partial_vanilla", 0.1, count, seed),
            monte_carlo("cpr_mfu", 0.02, count, seed),
            monte_carlo("cpr_mfu", 0.1, count, seed),
        ],
        "budget": [enforced(MTBF_S, MTBF_S, count, seed), enforced(4 * HOUR, MTBF_S, count, seed)],
    }


def show(result: dict[str, Any]) -> None:
    """Print the tables."""
    console = Console(highlight=False, width=110)
    console.print(f"56 h, {SHARDS} shards, MTBF 28 h; {result['fitted']}")
    table = Table("model", "interval", "saving", "recovering", "lost work", "overhead", box=None)
    for name, line in result["model"].items():
        shares = (f"{line[part]:.2%}" for part in ("saving", "recovering", "lost_work", "total"))
        table.add_row(name, f"{line['interval_h']:.2f} h", *shares)
    console.print(table)
    console.print(f"partial recovery pays above PLS {result['break_even_pls']:.4f}\n")
    table = Table(
        *(
            "simulated",
            "interval",
            "runs",
            "mean PLS (95 %)",
            "exact sum",
            "inside",
            "first order",
            "÷ mean",
            "overhead",
        ),
        box=None,
    )
    for line in result["monte_carlo"]:
        low, high = line["pls_95"]
        table.add_row(
            line["strategy"],
            f"{line['interval_h']:.2f} h",
            str(line["schedules"]),
            f"{line['pls']:.5f} ({low:.5f}–{high:.5f})",
            f"{line['exact_sum']:.5f}",
            "yes" if line["exact_sum_inside"] else "NO",
            f"{line['first_order']:.5f}",
            f"{line['first_order_over_pls']:.3f}",
            f"{line['overhead']:.2%}",
        )
    console.print(table)
    console.print()
    table = Table(
        *("MTBF (assumed)", "budget 0.1", "mean PLS", "largest", "over", "tightened", "to full", "overhead"), box=None
    )
    for line in result["budget"]:
        for name in ("not_enforced", "enforced"):
            found = line[name]
            table.add_row(
                f"{line['mtbf_h']:.0f} h ({line['assumed_h']:.0f} h)",
                name.replace("_", " "),
                f"{found['mean_pls']:.4f}",
                f"{found['max_pls']:.4f}",
                *(str(found[part]) for part in ("over_budget", "tightened", "switched_to_full")),
                f"{found['overhead']:.2%}",
            )
    console.print(table)


def main() -> None:
    """Evaluate, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    result = measure(given.schedules, given.seed)
    if given.json:
        print(json.dumps(result, indent=1))
    else:
        show(result)


if __name__ == "__main__":
    main()
