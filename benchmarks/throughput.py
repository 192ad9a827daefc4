"""``python -m benchmarks.throughput``: ``penumbra train`` against TorchRec on the same cores and batches, as ratios.

Pairs alternate within one run; the JSON on stdout has every pair and the medians, the table goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, Case
from benchmarks.dense_limit import dense_limit
from benchmarks.torchrec_peer import RANKS
from services.config_file import dump_config
from services.driver import run

_PEER_TIMEOUT_S = 600
_MEDIANS = (
    "penumbra_samples_per_s",
    "torchrec_samples_per_s",
    "dense_limit_samples_per_s",
    "ratio",
    "share_of_limit",
    "startup_s",
)


def main() -> None:
    """Measure every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--case", action="append", help="name, as in the table; all when left out")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="penumbra-bench-") as scratch:
        for case in CASES:
            if not options.case or case.name in options.case:
                results.append(_measure(case, Path(scratch), options.pairs))
                print(_row(results[-1]), file=sys.stderr, flush=True)
    json.dump({"benchmark": "throughput", "cpus": os.cpu_count(), "cases": results}, sys.stdout, indent=1)
    print()


def _measure(case: Case, scratch: Path, pairs: int) -> dict[str, Any]:
    data = case.write_data(scratch)
    config = case.config(data, scratch / "runs")
    settings = scratch / "settings.yaml"
    settings.write_text(dump_config(config), encoding="utf-8")
    rounds: list[dict[str, Any]] = []
    for _ in range(pairs):
        summary = run(config)
        own = summary.throughput_samples_per_s
        if summary.state != "SUCCEEDED" or own is None:
            raise RuntimeError(f"{case.name}: {summary.state}: {summary.error}")
        peer = peer_throughput(settings, scratch)
        limit = dense_limit(config, RANKS, case.rows // 4)
        rounds.append(
            {
                "penumbra_samples_per_s": own,
                "torchrec_samples_per_s": peer,
                "dense_limit_samples_per_s": limit,
                "ratio": own / peer,
                "share_of_limit": own / limit,
                "startup_s": summary.startup_s,
                "phases_s": summary.phases_s.model_dump() if summary.phases_s else None,
            }
        )
    medians = {key: statistics.median(r[key] for r in rounds) for key, v in rounds[0].items() if isinstance(v, float)}
    return {"case": case.name, "pairs": pairs, **medians, "rounds": rounds}


def peer_throughput(settings: Path, scratch: Path) -> float:
    """Samples/s of TorchRec on the run in ``settings``; ``scratch`` is for its rendezvous."""
    rendezvous = scratch / "rendezvous"
    rendezvous.unlink(missing_ok=True)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.torchrec_peer", settings, rendezvous, str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(RANKS)
    ]
    outputs = [rank.communicate(timeout=_PEER_TIMEOUT_S)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"the TorchRec peer failed: exit codes {[rank.returncode for rank in ranks]}")
    return float(json.loads(outputs[0].splitlines()[-1])["throughput_samples_per_s"])


def _row(result: dict[str, Any]) -> str:
    return (
        f"{result['case']:<18} Penumbra {result['penumbra_samples_per_s']:>9,.0f}/s   TorchRec DMP "
        f"{result['torchrec_samples_per_s']:>9,.0f}/s   ratio {result['ratio']:.2f}   "
        f"{result['share_of_limit']:.0%} of the dense part alone   start-up {result['startup_s']:.1f} s"
    )


if __name__ == "__main__":
    main()
