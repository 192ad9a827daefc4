"""Does priority pay? ``python -m benchmarks.priority [--json]``.

One embedding table is trained by fbgemm on Zipf-like ids towards a target, with noise: by SGD, as in CPR's experiments,
and by row-wise Adagrad. Beside it every strategy saves rows within the same bytes: everything every T, or the fraction
r every r·T. Now and then the rows are imagined lost, and the mean squared distance between each strategy's newest
saved rows and the lost ones is taken. Saving does not touch training, so strategies are paired by seed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.kaggle import EXPONENT, zipf_ids
from checkpoint.piece import Piece
from checkpoint.priority.adagrad import AdagradTracker
from checkpoint.priority.mfu import MfuTracker
from checkpoint.priority.scar import ScarTracker
from checkpoint.priority.ssu import SsuTracker
from checkpoint.priority.tracker import PriorityTracker, TensorSpec, Watched
from checkpoint.row_init import initial_rows
from services.shard.tbe import PieceTable

FRACTION = 0.125
BATCH = 2048
DIM = 16
RATES = {"exact_sgd": 0.1 / 128, "exact_row_wise_adagrad": 0.02}
"""Learning rates for the gradient of one sample's loss; SGD's is the DLRM scripts' 0.1 at a mean over 128 samples."""
_T975 = {4: 2.7764, 5: 2.5706, 6: 2.4469, 7: 2.3646, 8: 2.3060, 9: 2.2622, 14: 2.1448, 19: 2.0930}
"""Student's t at 97.5 %, by degrees of freedom."""


Result = dict[str, Any]


@dataclass
class Saver:
    """One strategy's saved rows; ``tracker`` is ``None`` for saving everything."""

    saved: Tensor
    tracker: PriorityTracker | None
    rows_written: int = 0

    def save(self, weights: Tensor) -> None:
        """Save what this strategy saves."""
        if self.tracker is None:
            self.saved.copy_(weights)
            self.rows_written += weights.shape[0]
            return
        rows = self.tracker.select(0, int(FRACTION * weights.shape[0]))
        self.saved[rows] = weights[rows]
        self.tracker.clear(0, rows)
        self.rows_written += rows.numel()


def _zeros(specs: dict[str, TensorSpec]) -> dict[str, Tensor]:
    return {name: torch.zeros(spec.numel, dtype=getattr(torch, spec.dtype)) for name, spec in specs.items()}


def _savers(weights: Tensor, sums: Tensor | None, piece: Piece, seed: int) -> dict[str, Saver]:
    watched = Watched.of((piece,), (piece.table,))
    mfu, ssu = MfuTracker.tensor_specs(watched), SsuTracker.tensor_specs(watched, FRACTION)
    scar = ScarTracker(watched, _zeros(ScarTracker.tensor_specs(watched, "float32")), [weights])
    scar.start()
    trackers: dict[str, PriorityTracker | None] = {
        "vanilla": None,
        "mfu": MfuTracker(watched, _zeros(mfu), seed=seed),
        "mfu, every push": MfuTracker(watched, _zeros(mfu), every=1),
        "ssu": SsuTracker(watched, _zeros(ssu), FRACTION, seed=seed),
        "ssu, every 2nd push": SsuTracker(watched, _zeros(ssu), FRACTION, every=2, seed=seed),
        "scar": scar,
    }
    if sums is not None:
        trackers["adagrad"] = AdagradTracker(watched, _zeros(AdagradTracker.tensor_specs(watched)), [sums])
    return {name: Saver(weights.clone(), tracker) for name, tracker in trackers.items()}


def run(optimizer: str, seed: int, rows: int, interval_pushes: int, intervals: int) -> dict[str, dict[str, float]]:
    """One seed: strategy → mean squared distance over the losses, and rows written."""
    piece = Piece("table", 0, rows, 0, DIM)
    first = torch.from_numpy(initial_rows(seed, piece.table, rows, DIM, 0, rows))
    arrays = {"weights": first.reshape(-1)}
    if optimizer != "exact_sgd":
        arrays["momentum1"] = torch.zeros(rows)
    table = PieceTable((piece,), optimizer, 1e-8, arrays)
    weights = arrays["weights"].view(rows, DIM)
    random = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(rows, DIM, generator=generator)
    offsets = torch.arange(BATCH + 1)
    savers = _savers(weights, arrays.get("momentum1"), piece, seed)
    short = int(FRACTION * interval_pushes)
    losses: dict[str, list[float]] = {name: [] for name in savers}
    for push in range(1, interval_pushes * intervals + 1):
        ids = torch.from_numpy(zipf_ids(random, rows, BATCH))
        noise = torch.randn(BATCH, DIM, generator=generator)
        table.update(table.lookup(ids, offsets) - target[ids] + noise, ids, offsets, RATES[optimizer])
        for saver in savers.values():
            if saver.tracker is not None:
                saver.tracker.observe(ids, offsets)
        if push > interval_pushes and random.random() < 8 / interval_pushes:  # before this push's saves: a loss
            for name, saver in savers.items():
                losses[name].append(float((saver.saved - weights).square().mean()))
        for saver in savers.values():
            if push % (interval_pushes if saver.tracker is None else short) == 0:
                saver.save(weights)
    return {
        name: {"distance": statistics.fmean(losses[name]), "rows_written": saver.rows_written}
        for name, saver in savers.items()
    }


def measure(optimizer: str, seeds: int, rows: int, interval_pushes: int, intervals: int) -> Result:
    """All seeds; ratios to vanilla are geometric means with 95 % intervals, paired by seed."""
    runs = [run(optimizer, seed, rows, interval_pushes, intervals) for seed in range(seeds)]
    return {
        "optimizer": optimizer,
        "seeds": seeds,
        "rows": rows,
        "interval_pushes": interval_pushes,
        "intervals": intervals,
        "strategies": {
            name: _compare([one[name] for one in runs], [one["vanilla"] for one in runs]) for name in runs[0]
        },
    }


def _compare(runs: list[dict[str, float]], vanilla: list[dict[str, float]]) -> dict[str, Any]:
    logs = [math.log(own["distance"] / base["distance"]) for own, base in zip(runs, vanilla, strict=True)]
    mean = statistics.fmean(logs)
    half = _T975[len(runs) - 1] * statistics.stdev(logs) / math.sqrt(len(runs))
    written = [own["rows_written"] / base["rows_written"] for own, base in zip(runs, vanilla, strict=True)]
    return {
        "distance": statistics.fmean(one["distance"] for one in runs),
        "ratio": round(math.exp(mean), 4),
        "ratio_95": [round(math.exp(mean - half), 4), round(math.exp(mean + half), 4)],
        "bytes_ratio": round(statistics.fmean(written), 4),
    }


def show(result: Result) -> None:
    """Print the table."""
    console = Console(highlight=False, width=110)
    console.print(
        f"\n{result['optimizer']}, {result['rows']:,} rows × {DIM}, Zipf exponent {EXPONENT}, r = {FRACTION}, "
        f"{result['seeds']} seeds\nT = {result['interval_pushes']} pushes of {BATCH} ids, {result['intervals']} T"
    )
    table = Table("strategy", "mean squared distance", "÷ vanilla (95 %)", "bytes ÷ vanilla", box=None)
    for name, line in result["strategies"].items():
        low, high = line["ratio_95"]
        table.add_row(
            name,
            f"{line['distance']:.3e}",
            f"{line['ratio']:.3f} ({low:.3f}–{high:.3f})",
            f"{line['bytes_ratio']:.3f}",
        )
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8, choices=[degrees + 1 for degrees in _T975])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--interval-pushes", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--intervals", type=int, default=3)
    parser.add_argument("--optimizer", nargs="+", default=list(RATES), choices=list(RATES))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = [
        measure(optimizer, given.seeds, given.rows, pushes, given.intervals)
        for optimizer in given.optimizer
        for pushes in given.interval_pushes
    ]
    if given.json:
        print(json.dumps(results, indent=1))
    else:
        for result in results:
            show(result)


if __name__ == "__main__":
    main()
