"""Multi-hot click logs in MLPerf's day files, for the DCNv2 case: what a shard of such a model has to look up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.data.criteo import DENSE


def write_days(folder: Path, rows: int, days: int, table_rows: Sequence[int], hotness: Sequence[int]) -> None:
    """Write ``rows`` rows in ``days`` files that ``data.format=npy_multi_hot`` reads.

    Ids of a feature are drawn one by one with a frequency that falls as 1/rank, and ranks are spread over the table.

    Args:
        folder: created when missing.
        rows: N in all.
        days: files, of N/days rows each.
        table_rows: size of each feature's table.
        hotness: ids a sample has of each feature.
    """
    folder.mkdir(parents=True, exist_ok=True)
    order = np.random.default_rng(0)
    places = [order.permutation(size).astype(np.int32) for size in table_rows]
    for day in range(days):
        rng = np.random.default_rng([1, day])
        count = rows * (day + 1) // days - rows * day // days
        np.save(folder / f"day_{day}_dense.npy", rng.random((count, len(DENSE)), dtype=np.float32))
        np.save(folder / f"day_{day}_labels.npy", rng.integers(0, 2, (count, 1), dtype=np.int32))
        lists = {
            str(feature): place[_ranks(rng, len(place), (count, hot))]
            for feature, (place, hot) in enumerate(zip(places, hotness, strict=True))
        }
        np.savez(folder / f"day_{day}_sparse_multi_hot.npz", **lists)  # type: ignore[arg-type]


def _ranks(rng: np.random.Generator, size: int, shape: tuple[int, int]) -> NDArray[np.int32]:
    """0…size-1, log-uniform."""
    ranks = np.exp(rng.random(shape, dtype=np.float32) * np.log(size + 1, dtype=np.float32))
    inside: NDArray[np.int32] = np.minimum(ranks.astype(np.int32) - 1, size - 1, dtype=np.int32)
    return inside
