"""``python -m benchmarks.saves_on``: what saves take from a running job's throughput, as ratios.

The same run with no saves and no tracker, with the defaults, and with priority saves taken back to back; the three
alternate. JSON on stdout, a table on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.cases import KaggleDlrm
from services.driver import run

WAYS: dict[str, dict[str, Any]] = {
    "no saves": {"enabled": False},
    "defaults": {},
    "priority saves back to back": {"strategy": "cpr_adagrad", "interval_s": 4.0, "full_every_rounds": None},
    "the same, MFU": {"strategy": "cpr_mfu", "interval_s": 4.0, "full_every_rounds": None},
}


def main() -> None:
    """Measure every way ``--rounds`` times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=3_000_000)
    options = parser.parse_args()
    case = KaggleDlrm("bf16", 2048, options.rows, table_rows=200_000)
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="penumbra-bench-") as scratch:
        data = case.write_data(Path(scratch))
        for number in range(options.rounds):
            for way in list(WAYS)[:: 1 if number % 2 else -1]:
                found[way].append(_measure(case, data, Path(scratch) / "runs", WAYS[way]))
    plain = [one["samples_per_s"] for one in found["no saves"]]
    for way, rounds in found.items():
        ratio = statistics.median(one["samples_per_s"] / base for one, base in zip(rounds, plain, strict=True))
        saves = statistics.median(one["saves"] for one in rounds)
        rate = statistics.median(one["samples_per_s"] for one in rounds)
        print(f"{way:<30}{rate:>10,.0f}/s   {ratio:.3f} of no saves   {saves:g} saves", file=sys.stderr)
    json.dump({"benchmark": "saves_on", "cpus": os.cpu_count(), "rounds": found}, sys.stdout, indent=1)
    print()


def _measure(case: KaggleDlrm, data: Path, storage: Path, checkpoint: dict[str, Any]) -> dict[str, Any]:
    config = case.config(data, storage)
    settings = config.checkpoint.model_copy(update=checkpoint)
    summary = run(config.model_copy(update={"checkpoint": settings}))
    rate = summary.throughput_samples_per_s
    if summary.state != "SUCCEEDED" or rate is None:
        raise RuntimeError(f"{summary.state}: {summary.error}")
    saved = summary.checkpoint
    return {
        "samples_per_s": rate,
        "saves": saved.full_saves + saved.priority_saves if saved else 0,
        "checkpoint": saved.model_dump() if saved else None,
        "phases_s": summary.phases_s.model_dump() if summary.phases_s else None,
    }


if __name__ == "__main__":
    main()
