"""How fast rows come back: ``python -m benchmarks.restore [--rows N] [--json]``.

A table of 64 columns with row-wise Adagrad is saved in full by four shards, then two deltas of an eighth of its rows.
Each way is restored three times into memory that was used before; the median counts. *Disk* drops the files from the
page cache first. *Plain read* is ``readinto`` of the full save's files into the same memory, nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from checkpoint.chain import Chain, choose
from checkpoint.checked_reader import byte_view
from checkpoint.manifest import Encoding, TableSpec
from checkpoint.piece import Piece
from checkpoint.piece_rows import PieceRows
from checkpoint.restore import restore
from checkpoint.shard_save import ShardSave
from checkpoint.store import CheckpointStore
from checkpoint.writer import ShardWriter

_DIM = 64
_SHARDS = 4
_REPEATS = 3


def _room(rows: int, pieces: int) -> list[PieceRows]:
    edges = [rows * index // pieces for index in range(pieces + 1)]
    cuts = [Piece("t", start, end, 0, _DIM) for start, end in pairwise(edges)]
    return [PieceRows(piece, torch.zeros(piece.rows, _DIM), {"sum": torch.zeros(piece.rows)}) for piece in cuts]


def _save(directory: Path, rows: int, encoding: Encoding, deltas: int) -> CheckpointStore:
    store = CheckpointStore(str(directory), run="benchmark")
    writer = ShardWriter()
    live = _room(rows, _SHARDS)
    generator = torch.Generator().manual_seed(0)
    for piece in live:
        piece.weights.normal_(generator=generator)
    specs = {"t": TableSpec(rows=rows, dim=_DIM, dtype="fp32", optimizer="exact_row_wise_adagrad")}
    parent = None
    for number in range(1 + deltas):
        kind: Any = "delta" if number else "full"
        ticket = store.begin(kind, timeline=0, samples=number, consistent=True, tables=specs, parent=parent)
        files = []
        for shard_id, piece in enumerate(live):
            some = torch.nonzero(torch.rand(piece.piece.rows, generator=generator) < 0.125).flatten()
            save = ShardSave(ticket, shard_id, [piece], {0: some if number else None}, encoding, writer)
            files += save.finish()
        parent = store.commit(ticket, files).save_id
    writer.close()
    return store


def _paths(directory: Path) -> list[Path]:
    return sorted(directory.glob("saves/*/*.safetensors"))


def _forget(directory: Path) -> None:
    for path in _paths(directory):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _seconds(action: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> float:
    times = []
    for _ in range(_REPEATS):
        before()
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _plain_read(directory: Path, into: Sequence[PieceRows]) -> None:
    for path, piece in zip(_paths(directory), into, strict=False):
        with path.open("rb", buffering=0) as file:
            memory = byte_view(piece.weights)
            for start in range(0, len(memory), 1 << 20):
                file.readinto(memory[start : start + (1 << 20)])


def measure(directory: Path, rows: int) -> dict[str, Any]:
    """Seconds and MB/s (of rows and state restored) of every way."""
    same, other = _room(rows, _SHARDS), _room(rows, 3)
    total_bytes = sum(piece.nbytes for piece in same)
    plain = directory / "fp32"
    store = _save(plain, rows, "fp32", deltas=2)
    chain = choose(store.list()).chain
    full = Chain(chain.saves[:1])
    ways: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "plain read": (lambda: _plain_read(plain, same), lambda: None),
        "full save": (lambda: restore(store, full, same), lambda: None),
        "full save, checksums off": (lambda: restore(store, full, same, check=False), lambda: None),
        "full save, 4 shards to 3": (lambda: restore(store, full, other), lambda: None),
        "full save, disk": (lambda: restore(store, full, same), lambda: _forget(plain)),
        "full save and two deltas": (lambda: restore(store, chain, same), lambda: None),
    }
    found = {}
    for way, (action, before) in ways.items():
        found[way] = _seconds(action, before)
    for encoding in ("fp16", "int8", "int4"):
        coded = _save(directory / encoding, rows, encoding, deltas=0)
        only = choose(coded.list()).chain
        found[f"full save, {encoding}"] = _seconds(lambda s=coded, c=only: restore(s, c, same))  # type: ignore[misc]
    return {
        "rows": rows,
        "bytes": total_bytes,
        "ways": {way: {"s": s, "mb_per_s": total_bytes / s / 1e6} for way, s in found.items()},
    }


def main() -> None:
    """Measure, print the table on stderr and JSON on stdout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--directory", help="where to save; a temporary directory when left out")
    parser.add_argument("--json", action="store_true", help="print one JSON value on stdout")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        result = measure(Path(directory), options.rows)
    if options.json:
        print(json.dumps(result))
        return
    table = Table("way", "s", "MB/s", title=f"{result['bytes'] / 1e6:.0f} MB of rows and state")
    for way, figures in result["ways"].items():
        table.add_row(way, f"{figures['s']:.3f}", f"{figures['mb_per_s']:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
