"""``make bench``: throughput of the loop the user runs, on synthetic rows of Criteo Kaggle shape, as one JSON value."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from pathlib import Path

from services.config_file import load_config
from services.driver import run
from services.progress import Progress
from trainer.data.synth import synthesize

_ROWS = 600_000
_MAX_TABLE_ROWS = 100_000
_CASES = ((1, 1, 2048), (1, 2, 2048), (2, 2, 2048), (2, 2, 200))
"""(trainers, shards, batch size)"""


def main() -> None:
    """Runs every case once, one after the other."""
    results = []
    with tempfile.TemporaryDirectory(prefix="penumbra-bench-") as scratch:
        data = Path(scratch) / "data"
        synthesize(data, rows=_ROWS, seed=0, max_table_rows=_MAX_TABLE_ROWS)
        for trainers, shards, batch_size in _CASES:
            results.append(_measure(scratch, data, trainers, shards, batch_size))
    machine = {"cpus": os.cpu_count(), "machine": platform.machine()}
    print(json.dumps({"benchmark": "throughput", "rows": _ROWS, "machine": machine, "cases": results}, indent=1))


def _measure(scratch: str, data: Path, trainers: int, shards: int, batch_size: int) -> dict[str, object]:
    overrides = [
        f"name=t{trainers}-s{shards}-b{batch_size}",
        f"storage_path={scratch}/runs",
        f"data.train={data}",
        f"cluster.trainers={trainers}",
        f"cluster.shards={shards}",
        f"train.batch_size={batch_size}",
    ]
    summary = run(load_config(None, overrides), _show)
    if summary.state != "SUCCEEDED":
        raise RuntimeError(f"{summary.run} ended {summary.state}: {summary.error}")
    return {
        "trainers": trainers,
        "shards": shards,
        "batch_size": batch_size,
        "throughput_samples_per_s": summary.throughput_samples_per_s,
        "startup_s": summary.startup_s,
        "phases_s": summary.phases_s.model_dump() if summary.phases_s else None,
    }


def _show(progress: Progress) -> None:
    print(f"{progress.stage}: {progress.samples}/{progress.total_samples}", end="\r", file=sys.stderr)


if __name__ == "__main__":
    main()
