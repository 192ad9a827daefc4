"""``python -m benchmarks.input``: rows one core reads from each format, and the memory of ``penumbra prepare``.

Reading goes from the file to raw blocks, as in a reader thread, the scan that plans splits included; ``batch_…`` goes
on to finished batches with hashed ids. Medians over some passes, by the clock and by CPU time: on a machine that is
busy with other things only the second says what a core can do. JSON on stdout, a table on stderr.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from services.prepare.manifest import Settings
from services.prepare.run import Request, prepare
from trainer.config import DataConfig
from trainer.data.assembler import BatchAssembler
from trainer.data.dataset import open_dataset
from trainer.data.encoder import build_encoders
from trainer.data.split import Lease
from trainer.data.synth import synthesize

_BAR_ROWS_PER_S: Final = 300_000
_BLOCK_ROWS: Final = 4096
_BATCH: Final = 2048
_ROW_BYTES: Final = 244


def main() -> None:
    """Measure every format, then memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--small-mb", type=int, default=20, help="input of the first prepare")
    parser.add_argument("--large-mb", type=int, default=200, help="input of the second prepare")
    parser.add_argument("--peak", nargs=2, metavar=("IN", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print(_prepare_peak_bytes(*options.peak))
        return
    with tempfile.TemporaryDirectory(prefix="penumbra-input-") as scratch:
        formats = _formats(Path(scratch), options.rows, options.passes)
        memory = _memory(Path(scratch), options.small_mb, options.large_mb)
    result = {"benchmark": "input", "cpus": os.cpu_count(), "rows": options.rows, "formats": formats, "memory": memory}
    json.dump(result, sys.stdout, indent=1)
    print()


def _formats(scratch: Path, rows: int, passes: int) -> dict[str, Any]:
    text = scratch / "text"
    synthesize(text, rows=rows, seed=0, max_table_rows=1_000_000)
    whole = (text / "part-00000.tsv").read_bytes()
    for name, kind in (("gz", "gzip"), ("zst", "zstd")):
        with pa.output_stream(str(scratch / f"log.{name}"), compression=kind) as file:
            file.write(whole)
    del whole
    _prepare(text / "part-00000.tsv", scratch / "parquet")
    cases = {
        "tsv": DataConfig(train=str(text)),
        "tsv.gz": DataConfig(train=str(scratch / "log.gz")),
        "tsv.zst": DataConfig(train=str(scratch / "log.zst")),
        "parquet": DataConfig(format="parquet", train=str(scratch / "parquet")),
    }
    results = {}
    for name, config in cases.items():
        wall, cpu = _rates(_read, config, rows, passes)
        batch_wall, batch_cpu = _rates(_batches, config, rows, passes)
        results[name] = {
            "rows_per_s": wall,
            "rows_per_cpu_s": cpu,
            "batch_rows_per_s": batch_wall,
            "batch_rows_per_cpu_s": batch_cpu,
        }
        bar = f"  (bar {_BAR_ROWS_PER_S:,})" if name == "tsv" else ""
        print(
            f"{name:8} {wall:10,.0f} rows/s {cpu:10,.0f} rows/CPU s; "
            f"as batches {batch_wall:10,.0f} and {batch_cpu:10,.0f}{bar}",
            file=sys.stderr,
        )
    return results


def _rates(read: Callable[[DataConfig], int], config: DataConfig, rows: int, passes: int) -> tuple[float, float]:
    """Rows per second of the clock and of CPU time, medians."""
    walls, cpus = [], []
    for _ in range(passes):
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        count = read(config)
        walls.append(rows / (time.perf_counter() - start_s))
        cpus.append(rows / (time.process_time() - start_cpu_s))
        if count != rows:
            raise RuntimeError(f"read {count} of {rows} rows")
    return statistics.median(walls), statistics.median(cpus)


def _read(config: DataConfig) -> int:
    dataset = open_dataset(config.model_copy(update={"eval_fraction": 0.0}))
    splits = dataset.plan_splits().train
    return sum(b.rows for s in splits for b in dataset.read(s, ((s.row_start, s.row_end),), _BLOCK_ROWS))


def _batches(config: DataConfig) -> int:
    dataset = open_dataset(config.model_copy(update={"eval_fraction": 0.0}))
    assembler = BatchAssembler(build_encoders(dataset.schema, config), _BATCH)
    rows = 0
    for number, split in enumerate(dataset.plan_splits().train):
        ranges = ((split.row_start, split.row_end),)
        lease = Lease(number, split, 0, "train", ranges)
        for block in dataset.read(split, ranges, _BLOCK_ROWS):
            rows += sum(batch.size for batch in assembler.add(lease, block))
    return rows + sum(batch.size for batch in assembler.flush())


def _memory(scratch: Path, small_mb: int, large_mb: int) -> dict[str, Any]:
    """Peak resident memory of one worker's part of prepare, for two sizes of input."""
    peaks = []
    for megabytes in (small_mb, large_mb):
        log = scratch / f"log-{megabytes}"
        synthesize(log, rows=max(1, (megabytes << 20) // _ROW_BYTES), seed=1, max_table_rows=1_000_000)
        command = [sys.executable, "-m", "benchmarks.input", "--peak", str(log), str(scratch / f"out-{megabytes}")]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        size_bytes = sum(path.stat().st_size for path in log.glob("part-*"))
        peaks.append({"input_bytes": size_bytes, "peak_bytes": int(done.stdout)})
        print(f"prepare    {size_bytes / 2**20:6.0f} MiB in, peak {int(done.stdout) / 2**20:6.0f} MiB", file=sys.stderr)
    return {"prepare": peaks, "growth_bytes": peaks[1]["peak_bytes"] - peaks[0]["peak_bytes"]}


def _prepare_peak_bytes(log: str, out: str) -> int:
    """High-water mark of this process alone: ``ru_maxrss`` would be the parent's, which survives ``exec``."""
    _prepare(Path(log), Path(out))
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)[0]) * 1024


def _prepare(log: Path, out: Path) -> None:
    settings = Settings(group_rows=16_384, file_rows=1 << 20)
    serial: Any = functools.partial(map)
    prepare(Request((str(log),), out, settings, 0.0), lambda *_: None, serial)


if __name__ == "__main__":
    main()
