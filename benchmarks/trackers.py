"""What priority trackers cost a shard: ``python -m benchmarks.trackers [--json]``.

The product's own shard looks up and applies pushes of Kaggle's shape (26 tables, dim 16); after each push one tracker,
in turn, observes it. A tracker's figure is the median of blocks of 12 pushes, so that a tracker that looks at every
sixth push is charged its whole share; it is put beside the same run's lookup and push.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.kaggle import DIM, one_hot_ids, table_rows
from checkpoint.piece import Piece
from checkpoint.priority.dirty import DirtyRows
from checkpoint.priority.mfu import MfuTracker
from checkpoint.priority.ssu import SsuTracker
from checkpoint.priority.tables import prioritized
from checkpoint.priority.tracker import PriorityTracker, TensorSpec, Watched
from services.identity import Address
from services.memory.store import MemoryStore
from services.shard.core import ShardCore
from services.shard.memory import ShardSpec

BLOCK = 12
FRACTION = 0.125
_BATCHES = 48


def _zeros(specs: dict[str, TensorSpec]) -> dict[str, Tensor]:
    return {name: torch.zeros(spec.numel, dtype=getattr(torch, spec.dtype)) for name, spec in specs.items()}


def trackers(watched: Watched) -> dict[str, PriorityTracker]:
    """Every tracker that is told of accesses, by the name it is printed under."""
    mfu, ssu = MfuTracker.tensor_specs(watched), SsuTracker.tensor_specs(watched, FRACTION)
    return {
        "MFU, every 6th push": MfuTracker(watched, _zeros(mfu)),
        "MFU, every push": MfuTracker(watched, _zeros(mfu), every=1),
        "SSU, every 4th push": SsuTracker(watched, _zeros(ssu), FRACTION),
        "SSU, every 2nd push": SsuTracker(watched, _zeros(ssu), FRACTION, every=2),
        "dirty rows (delta)": DirtyRows(watched, _zeros(DirtyRows.tensor_specs(watched))),
    }


def measure(max_rows: int, batch: int, pushes: int) -> dict[str, Any]:
    """Lookups, pushes and trackers over ``pushes`` pushes for each tracker."""
    rows = table_rows(max_rows)
    pieces = tuple(Piece(table, 0, count, 0, DIM) for table, count in rows.items())
    dims = dict.fromkeys(rows, DIM)
    spec = ShardSpec("trackers", 0, pieces, rows, dims, "exact_row_wise_adagrad", 1e-8, 0, 1)
    watched = Watched.of(pieces, prioritized(rows))
    random = np.random.default_rng(0)
    requests = [one_hot_ids(random, rows, batch) for _ in range(_BATCHES)]
    gradient = torch.randn(batch, DIM * len(pieces))
    store = MemoryStore(f"trackers-{os.getpid()}")
    try:
        core = ShardCore.create(store.name, Address("shard", 0, 1), spec)
        costs = _time(core, trackers(watched), requests, gradient, pushes)
        selecting = _selecting(watched, requests, core.unit_offsets(batch))
    finally:
        store.close()
    step_s = costs.pop("lookup") + costs.pop("push")
    row_bytes = watched.rows * DIM * 4
    return {
        "batch": batch,
        "rows": sum(rows.values()),
        "watched_tables": len(watched.indices),
        "watched_rows": watched.rows,
        "lookup_and_push_us": round(1e6 * step_s, 1),
        "trackers": {
            name: {
                "us": round(1e6 * seconds, 1),
                "share": round(seconds / step_s, 4),
                "bytes": tracker.overhead_bytes,
                "byte_share": round(tracker.overhead_bytes / row_bytes, 5),
            }
            for (name, seconds), tracker in zip(costs.items(), trackers(watched).values(), strict=True)
        },
        "select_ms": selecting,
    }


def _time(
    core: ShardCore, watching: dict[str, PriorityTracker], requests: list[Tensor], gradient: Tensor, pushes: int
) -> dict[str, float]:
    offsets = core.unit_offsets(gradient.shape[0])
    taken: dict[str, list[float]] = {name: [] for name in ("lookup", "push", *watching)}
    for step in range(pushes * len(watching)):
        ids = requests[step % len(requests)]
        name = list(watching)[step % len(watching)]
        started = time.perf_counter()
        core.lookup(ids, offsets)
        looked_up = time.perf_counter()
        core.push(0, step + 1, gradient, ids, offsets, 0.01)
        pushed = time.perf_counter()
        watching[name].observe(ids, offsets)
        observed = time.perf_counter()
        taken["lookup"].append(looked_up - started)
        taken["push"].append(pushed - looked_up)
        taken[name].append(observed - pushed)
    return {name: _by_block(seconds) for name, seconds in taken.items()}


def _by_block(seconds: list[float]) -> float:
    blocks = [sum(seconds[start : start + BLOCK]) / BLOCK for start in range(0, len(seconds) - BLOCK + 1, BLOCK)]
    return statistics.median(blocks[1:])  # the first one touches fresh memory


def _selecting(watched: Watched, requests: list[Tensor], offsets: Tensor) -> dict[str, float]:
    """Milliseconds to choose an eighth of the largest watched piece, by threshold and by a full topk."""
    piece = max(watched.indices, key=lambda index: watched.pieces[index].rows)
    tracker = MfuTracker(watched, _zeros(MfuTracker.tensor_specs(watched)), every=1)
    for ids in requests:
        tracker.observe(ids, offsets)
    rows = watched.pieces[piece].rows
    counters = tracker.tensors()["access_counters"]
    counters += torch.randint(0, 50, (watched.rows,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    before = sum(watched.pieces[index].rows for index in watched.indices if index < piece)
    counts = counters[before : before + rows]
    count = int(FRACTION * rows)
    return {
        "rows": rows,
        "threshold": _milliseconds(lambda: tracker.select(piece, count)),
        "topk": _milliseconds(lambda: torch.topk(counts, count).indices.sort()),
    }


def _milliseconds(call: Any) -> float:
    call()
    taken = []
    for _ in range(5):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return round(1e3 * statistics.median(taken), 2)


def show(result: dict[str, Any]) -> None:
    """Print the table."""
    console = Console(highlight=False, width=110)
    console.print(
        f"B={result['batch']}, 26 tables of {result['rows']:,} rows, {result['watched_tables']} watched with "
        f"{result['watched_rows']:,}; lookup + push {result['lookup_and_push_us']:.0f} µs, one intra-op thread"
    )
    table = Table("tracker", "µs a push", "of lookup + push", "bytes", "of the watched rows' bytes", box=None)
    for name, cost in result["trackers"].items():
        table.add_row(
            name, f"{cost['us']:.1f}", f"{cost['share']:.2%}", f"{cost['bytes']:,}", f"{cost['byte_share']:.2%}"
        )
    console.print(table)
    selecting = result["select_ms"]
    console.print(
        f"choosing {FRACTION:.1%} of {selecting['rows']:,} rows: {selecting['threshold']:.1f} ms by threshold, "
        f"{selecting['topk']:.1f} ms by topk and sort"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-rows", type=int, default=1_000_000, help="rows of a table at most")
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--pushes", type=int, default=480, help="pushes for each tracker")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(given.max_rows, given.batch, given.pushes)
    if given.json:
        print(json.dumps(result, indent=1))
    else:
        show(result)


if __name__ == "__main__":
    main()
