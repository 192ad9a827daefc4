"""What storing rows in fewer bits loses, and how fast it is: ``python -m benchmarks.encodings``.

JSON on stdout, a table on stderr. Errors are those of the product's own ``encode`` and ``decode``, over all rows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from checkpoint.encodings import decode, encode, encoded_row_bytes
from checkpoint.manifest import Encoding
from checkpoint.row_init import initial_rows

DIMS: Final = (16, 64, 128)
LOSSY: Final[tuple[Encoding, ...]] = ("fp16", "int8", "int4")
_TABLE_ROWS: Final = 715_000
_OUTLIERS: Final = 0.001
_BLOCK_ROWS: Final = 2048
_TIMES: Final = 5


def row_kinds(count: int, dim: int) -> dict[str, Tensor]:
    """Rows to lose something of, each ``count``×``dim`` float32.

    *initial*: as training starts, in a table of 715,000 rows (±0.0012). *trained*: normal, each row of its own size
    (log-normal, median 0.1), one value in a thousand ten times as large. *tiny*: normal of 1e-7.
    """
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(count, dim, generator=generator)
    sizes = 0.1 * torch.randn(count, 1, generator=generator).exp()
    outliers = torch.where(torch.rand(count, dim, generator=generator) < _OUTLIERS, 10.0, 1.0)
    return {
        "initial": torch.from_numpy(initial_rows(0, "encodings", _TABLE_ROWS, dim, 0, count)),
        "trained": normal * sizes * outliers,
        "tiny": normal * 1e-7,
    }


def loss(rows: Tensor, encoding: Encoding) -> dict[str, float]:
    """Largest absolute error, its ratio to the largest value of its row, and RMS error over RMS value."""
    decoded = decode(encode(rows, encoding), encoding, rows.shape[1]).double()
    error = (decoded - rows).abs()
    return {
        "max_abs": float(error.max()),
        "max_of_row": float((error.amax(1) / rows.abs().amax(1)).max()),
        "relative_rms": float(error.norm() / rows.double().norm()),
    }


def measure(count: int) -> dict[str, Any]:
    """Every kind, dim and encoding."""
    losses, speeds = [], []
    for dim in DIMS:
        kinds = row_kinds(count, dim)
        losses += [
            {"rows": kind, "dim": dim, "encoding": encoding, **loss(rows, encoding)}
            for kind, rows in kinds.items()
            for encoding in LOSSY
        ]
        speeds += [{"dim": dim, "encoding": encoding, **_speed(kinds["trained"], encoding)} for encoding in LOSSY]
    return {"benchmark": "encodings", "cpus": os.cpu_count(), "rows": count, "losses": losses, "speeds": speeds}


def _speed(rows: Tensor, encoding: Encoding) -> dict[str, float]:
    """In blocks, as saves and restores go."""
    count, dim = rows.shape
    blocks = torch.split(rows, _BLOCK_ROWS)
    encoded = [encode(block, encoding) for block in blocks]
    out = torch.empty(_BLOCK_ROWS, dim)
    bytes_of_row = encoded_row_bytes(dim, encoding)
    encode_s = _median_s(lambda: [encode(block, encoding, into) for block, into in zip(blocks, encoded, strict=True)])
    decode_s = _median_s(lambda: [decode(block, encoding, dim, out[: len(block)]) for block in encoded])
    return {
        "row_bytes": bytes_of_row,
        "of_fp32": bytes_of_row / (4 * dim),
        "encode_rows_per_s": count / encode_s,
        "decode_rows_per_s": count / decode_s,
    }


def _median_s(call: Callable[[], object]) -> float:
    call()
    taken = []
    for _ in range(_TIMES):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def _show(result: dict[str, Any]) -> None:
    console = Console(highlight=False, width=110, stderr=True)
    table = Table("rows", "dim", "encoding", "largest error", "of its row's largest", "relative RMS", box=None)
    for one in result["losses"]:
        table.add_row(
            one["rows"],
            str(one["dim"]),
            one["encoding"],
            f"{one['max_abs']:.2g}",
            f"{one['max_of_row']:.2g}",
            f"{one['relative_rms']:.2g}",
        )
    console.print(table)
    table = Table("dim", "encoding", "bytes a row", "of fp32", "encode M rows/s", "decode M rows/s", box=None)
    for one in result["speeds"]:
        table.add_row(
            str(one["dim"]),
            one["encoding"],
            str(one["row_bytes"]),
            f"{one['of_fp32']:.3f}",
            f"{one['encode_rows_per_s'] / 1e6:.1f}",
            f"{one['decode_rows_per_s'] / 1e6:.1f}",
        )
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(given.rows)
    _show(result)
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
