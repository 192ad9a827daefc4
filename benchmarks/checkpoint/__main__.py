"""``python -m benchmarks.checkpoint``: what saves cost training, beside torch DCP. JSON on stdout, a table on stderr.

Two training threads run all the time. In each round every way saves once, in an order that alternates. *lost* is the
training time a save cost: from its beginning for a fixed time (or until it is durable, if that is longer), the samples
missing against the rate just before, in seconds. *stall* is how long the rows were held for the save.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from benchmarks.checkpoint.loop import TrainingLoop
from benchmarks.checkpoint.tables import Tables
from benchmarks.checkpoint.ways import Ways

_BEFORE_S = 1.0
_PAUSE_S = 0.2
_BATCH = 512
_WINDOW_S = {16: 1.0, 64: 2.5}
BARS = {"stall": 1.5, "lost": 0.35, "durable": 0.5, "int8": 0.32, "int4": 0.2}


def main() -> None:
    """Measure both sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dim", type=int, action="append", choices=sorted(_WINDOW_S), help="16: 264 MB; 64: 1.05 GB")
    parser.add_argument("--folder", type=Path, help="on the storage to measure; the working directory when left out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)  # async_save asks for one
    with tempfile.TemporaryDirectory(prefix="penumbra-bench-", dir=options.folder or Path.cwd()) as scratch:
        cases = [_measure(dim, Path(scratch) / "saves", options.rounds) for dim in options.dim or sorted(_WINDOW_S)]
    dist.destroy_process_group()
    json.dump({"benchmark": "checkpoint", "cpus": os.cpu_count(), "cases": cases}, sys.stdout, indent=1)
    print()


def _measure(dim: int, folder: Path, rounds: int) -> dict[str, Any]:
    tables = Tables.build(dim)
    loop = TrainingLoop(tables, _BATCH)
    ways = Ways(tables, loop, folder)
    saves = ways.all()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in saves}
    loop.start()
    time.sleep(_BEFORE_S)
    for number in range(rounds + 1):
        for name in list(saves)[:: 1 if number % 2 else -1]:
            ways.clean()
            if name == "priority":
                ways.prepare_parent()
            time.sleep(_PAUSE_S + _BEFORE_S)
            started = time.perf_counter()
            outcome = saves[name]()
            window = max(_WINDOW_S[dim], time.perf_counter() - started + 0.1)
            time.sleep(started + window + 0.2 - time.perf_counter())
            rate = loop.samples(started - _BEFORE_S, started) / _BEFORE_S
            lost = window - loop.samples(started, started + window) / rate
            if number:  # the first round warms everything up
                found[name].append({**asdict(outcome), "lost_s": lost, "samples_per_s": rate})
    loop.stop()
    medians = {
        name: {key: statistics.median(one[key] for one in outcomes) for key in outcomes[0]}
        for name, outcomes in found.items()
    }
    case = {"dim": dim, "row_bytes": tables.nbytes, "rounds": rounds, "medians": medians, "ratios": _ratios(medians)}
    print(_table(case), file=sys.stderr, flush=True)
    return {**case, "bars": BARS, "all": found}


def _ratios(medians: dict[str, dict[str, float]]) -> dict[str, float]:
    full, peer = medians["full"], medians["DCP async_save"]
    return {
        "stall_of_full_to_plain_copy": full["stall_s"] / medians["plain copy"]["stall_s"],
        "stall_of_priority_to_plain_copy": medians["priority"]["stall_s"]
        / medians["plain copy, priority rows"]["stall_s"],
        "lost_to_dcp_async": full["lost_s"] / peer["lost_s"],
        "consistent_lost_to_dcp_async": medians["full, consistent"]["lost_s"] / peer["lost_s"],
        "durable_to_dcp_async": full["durable_s"] / peer["durable_s"],
        "int8_bytes_to_fp32": medians["full, int8"]["bytes"] / full["bytes"],
        "int4_bytes_to_fp32": medians["full, int4"]["bytes"] / full["bytes"],
    }


def _table(case: dict[str, Any]) -> str:
    lines = [
        f"\n{case['row_bytes'] / 1e6:.0f} MB of rows and state, dim {case['dim']}, medians of {case['rounds']}",
        f"{'':28}{'stall ms':>10}{'longest ms':>12}{'lost ms':>10}{'durable ms':>12}{'MB':>10}",
    ]
    for name, one in case["medians"].items():
        lines.append(
            f"{name:28}{1e3 * one['stall_s']:10.1f}{1e3 * one['longest_stall_s']:12.2f}{1e3 * one['lost_s']:10.1f}"
            f"{1e3 * one['durable_s']:12.1f}{one['bytes'] / 1e6:10.1f}"
        )
    return "\n".join([*lines, *(f"{name:40}{ratio:8.3f}" for name, ratio in case["ratios"].items())])


if __name__ == "__main__":
    main()
