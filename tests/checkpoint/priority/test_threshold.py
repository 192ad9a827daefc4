"""The largest by threshold are those of a stable sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from checkpoint.priority.threshold import largest


def by_sorting(values: np.ndarray, count: int) -> list[int]:
    order = np.argsort(-values.astype(np.int64), kind="stable")[: max(0, count)]
    return sorted(int(position) for position in order if values[position] > 0)


@settings(max_examples=300, deadline=None)
@given(
    hnp.arrays(np.int32, st.integers(0, 300), elements=st.one_of(st.integers(0, 3), st.integers(0, 2**31 - 1))),
    st.integers(-1, 320),
)
def test_as_a_stable_sort_has_it(values: np.ndarray, count: int) -> None:
    assert largest(torch.from_numpy(values), count).tolist() == by_sorting(values, count)


@pytest.mark.parametrize("count", [1, 1000, 12_345, 190_000, 300_000])
def test_many_values_over_several_chunks(count: int) -> None:
    values = np.random.default_rng(count).zipf(1.3, 200_000).clip(max=2**31 - 1).astype(np.int32)
    values[::7] = 0
    assert largest(torch.from_numpy(values), count).tolist() == by_sorting(values, count)


def test_the_top_of_the_range_does_not_overflow() -> None:
    values = torch.full((5,), 2**31 - 1, dtype=torch.int32)
    assert largest(values, 3).tolist() == [0, 1, 2]
