"""A part file: whatever the order of its spans, the rows are in order and none is there twice."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.coordinator.part_file import PartFile
from trainer.data.split import Split


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=st.integers(0, 1000),
    sizes=st.lists(st.integers(1, 30_000), min_size=1, max_size=12),
    kept=st.sampled_from([0.0, 0.9, 1.0]),
    seed=st.integers(0, 1000),
    first_line=st.none() | st.integers(1, 2),
)
def test_spans_in_any_order(
    tmp_path: Path, start: int, sizes: list[int], kept: float, seed: int, first_line: int | None
) -> None:
    path = tmp_path / "part.parquet"
    path.unlink(missing_ok=True)
    edges = [start, *(start + np.cumsum(sizes)).tolist()]
    spans = list(pairwise(edges))
    random.Random(seed).shuffle(spans)
    numbers = np.random.default_rng(seed)
    part = PartFile(path, Split("s3://logs/é.txt", start, edges[-1]), first_line)
    wanted: dict[int, float] = {}
    for number, (low, high) in enumerate(spans, start=1):
        rows = np.arange(low, high)[numbers.random(high - low) < kept]
        probabilities = numbers.random(len(rows), dtype=np.float32)
        wanted.update(zip(rows.tolist(), probabilities.tolist(), strict=True))
        assert not path.exists()
        assert part.add(low, high, rows, probabilities) == (number == len(spans))
    assert [file.name for file in tmp_path.iterdir()] == ["part.parquet"]
    table = pq.read_table(path)
    assert table.column_names == ["file", "row", "line", "probability"] and part.rows == len(wanted)
    assert dict(zip(table["row"].to_pylist(), table["probability"].to_pylist(), strict=True)) == wanted
    assert table["row"].to_pylist() == sorted(wanted)
    assert table["line"].to_pylist() == [None if first_line is None else row + first_line for row in sorted(wanted)]
    assert set(table["file"].to_pylist()) <= {"s3://logs/é.txt"}


@pytest.mark.parametrize("rows", [10, 100_000], ids=["in memory", "begun on the disk"])
def test_an_unfinished_file_leaves_nothing(tmp_path: Path, rows: int) -> None:
    part = PartFile(tmp_path / "part.parquet", Split("a", 0, rows + 1), 1)
    assert not part.add(0, rows, np.arange(rows), np.zeros(rows, np.float32))
    assert [file.name for file in tmp_path.iterdir()] == ([".part.parquet.partial"] if rows > 10 else [])
    part.discard()
    assert list(tmp_path.iterdir()) == []
