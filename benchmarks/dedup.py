"""Does it pay to send each id of a multi-hot request once? ``python -m benchmarks.dedup`` prints JSON.

For one request of a shard at several rates of duplicates: bytes and milliseconds to send the ids as they are, as
unique ids plus positions, and as 32-bit numbers; through a slab (a copy into shared memory) and through Ray's object
store, and what a link between two nodes takes besides.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

IDS = 2048 * 107
"""Ids of one of two shards: MLPerf's DCNv2 has 214 a sample."""
DUPLICATES = (0.0, 0.5, 0.9, 0.99)
LINK_BYTES_PER_S = 1.25e9
"""10 Gbit/s."""
_REPEATS = 9


def _milliseconds(call: Callable[[], Any]) -> float:
    call()
    seconds = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return round(1e3 * statistics.median(seconds), 3)


def _deduplicated(ids: Tensor) -> tuple[Tensor, Tensor]:
    unique, positions = torch.unique(ids, return_inverse=True)
    return unique, positions.int()


def _sent(parts: list[Tensor]) -> dict[str, float]:
    """What it costs to bring ``parts`` over, by way."""
    import ray

    slab = [torch.empty_like(part) for part in parts]
    arrays = [part.numpy() for part in parts]

    def copy() -> None:
        for target, part in zip(slab, parts, strict=True):
            target.copy_(part)

    size = sum(array.nbytes for array in arrays)
    return {
        "bytes": size,
        "slab_ms": _milliseconds(copy),
        "object_ms": _milliseconds(lambda: [np.asarray(array)[-1:] for array in ray.get(ray.put(arrays))]),
        "link_ms": round(1e3 * size / LINK_BYTES_PER_S, 3),
    }


def measure(duplicates: float) -> dict[str, Any]:
    """One rate of duplicates: ids drawn evenly from ``(1 - duplicates) · IDS`` rows."""
    generator = torch.Generator().manual_seed(0)
    rows = max(1, int(IDS * (1 - duplicates)))
    ids = (
        torch.randint(0, rows, (IDS,), generator=generator) if duplicates else torch.randperm(IDS, generator=generator)
    )
    unique, positions = _deduplicated(ids)
    narrow = ids.int()
    plain = _sent([ids])
    once = _sent([unique, positions]) | {
        "make_ms": _milliseconds(lambda: _deduplicated(ids)),
        "expand_ms": _milliseconds(lambda: unique.index_select(0, positions)),
    }
    int32 = _sent([narrow]) | {
        "make_ms": _milliseconds(ids.int),
        "expand_ms": _milliseconds(narrow.long),
    }
    ways = {"plain": plain, "unique": once, "int32": int32}
    for way in ways.values():
        work = way.get("make_ms", 0.0) + way.get("expand_ms", 0.0)
        way["slab_total_ms"] = round(work + way["slab_ms"], 3)
        way["nodes_total_ms"] = round(work + way["object_ms"] + way["link_ms"], 3)
    return {"duplicates": round(1 - unique.numel() / IDS, 3), "ids": IDS, "unique": unique.numel(), **ways}


def main() -> None:
    """Measure all rates and print them."""
    import ray

    torch.set_num_threads(1)
    ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=200 << 20, logging_level="ERROR")
    try:
        results = [measure(duplicates) for duplicates in DUPLICATES]
    finally:
        ray.shutdown()
    print(json.dumps({"link_bytes_per_s": LINK_BYTES_PER_S, "results": results}, indent=1))


if __name__ == "__main__":
    main()
