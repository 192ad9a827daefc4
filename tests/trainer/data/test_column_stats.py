from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainer.data.cardinality import DistinctCounts
from trainer.data.column_stats import ColumnStats


@pytest.mark.parametrize("distinct", [0, 1, 10, 1000, 20_000, 300_000])
def test_estimates_are_close(distinct: int) -> None:
    counts = DistinctCounts(2)
    values = np.random.default_rng(1).integers(0, 2**63, distinct, dtype=np.uint64)
    for part in np.array_split(np.concatenate((values, values[::-1])), 7):
        counts.add(1, part)
    assert counts.estimate(0) == 0
    assert abs(counts.estimate(1) - distinct) <= max(1 if distinct <= 10 else 0, 0.06 * distinct)


def test_parts_merge_to_the_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    values = rng.integers(0, 500, 3000, dtype=np.uint64)
    empty = rng.random(3000) < 0.2
    whole = ColumnStats(("a", "b"), ("b",))
    merged = ColumnStats(("a", "b"), ("b",))
    for part in np.array_split(np.arange(3000), 4):
        stats = ColumnStats(("a", "b"), ("b",))
        for name in ("a", "b"):
            stats.add(name, values[part], empty[part])
            whole.add(name, values[part], empty[part])
        stats.save(tmp_path / "part.npz")
        merged.merge(ColumnStats.load(tmp_path / "part.npz", ("a", "b"), ("b",)))
    assert merged.missing == whole.missing == {"a": int(empty.sum()), "b": int(empty.sum())}
    assert merged.cardinality("a") == whole.cardinality("a")
    found = merged.vocabularies(5)["b"]
    distinct, counts = np.unique(values, return_counts=True)
    assert found.values.tolist() == distinct[counts >= 5].tolist()
    assert found.counts.tolist() == counts[counts >= 5].tolist()
    assert list(merged.vocabularies(1)) == ["b"]
