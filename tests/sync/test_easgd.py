"""The elastic exchange against the same update in float64, and what it promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sync.easgd import exchange_symmetric

_FLOATS = st.floats(-100, 100, width=32)
_PAIRS = arrays.arrays(np.float32, st.tuples(st.just(2), st.integers(1, 50)), elements=_FLOATS)
_ALPHAS = st.floats(0.01, 0.99)
_ATOL = 1e-4  # 100 at float32's 6e-8, a few roundings


def _exchanged(pair: np.ndarray, alpha: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Centre and replica afterwards, as the trainer has them."""
    center, weights = torch.tensor(pair[0]), torch.tensor(pair[1])
    snapshot = weights.clone()
    exchange_symmetric(center, snapshot, alpha)
    return center, weights - snapshot


@settings(deadline=None)
@given(pair=_PAIRS, alpha=_ALPHAS)
def test_both_move_as_the_paper_says(pair: np.ndarray, alpha: float) -> None:
    center, weights = _exchanged(pair, alpha)
    c, w = pair.astype(np.float64)
    np.testing.assert_allclose(center.numpy(), (1 - alpha) * c + alpha * w, atol=_ATOL)
    np.testing.assert_allclose(weights.numpy(), (1 - alpha) * w + alpha * c, atol=_ATOL)


@settings(deadline=None)
@given(pair=_PAIRS, alpha=_ALPHAS)
def test_their_sum_is_kept_and_their_distance_shrinks(pair: np.ndarray, alpha: float) -> None:
    center, weights = _exchanged(pair, alpha)
    np.testing.assert_allclose((center + weights).numpy(), pair.sum(axis=0, dtype=np.float64), atol=_ATOL)
    apart = (1 - 2 * alpha) * (pair[1].astype(np.float64) - pair[0])
    np.testing.assert_allclose((weights - center).numpy(), apart, atol=_ATOL)


def test_the_exchange_works_in_place() -> None:
    memory = torch.zeros(3, 4)
    center, snapshot = memory[0], memory[2]
    snapshot.fill_(8.0)
    exchange_symmetric(center, snapshot, 0.25)
    assert memory.tolist() == [[2.0] * 4, [0.0] * 4, [2.0] * 4]


def test_a_half_makes_them_meet_and_equals_stay() -> None:
    pair = np.array([[1, -3, 5], [5, -1, 5]], np.float32)
    center, weights = _exchanged(pair, 0.5)
    assert center.tolist() == weights.tolist() == [3, -2, 5]
    assert [side.tolist() for side in _exchanged(np.stack([pair[0], pair[0]]), 0.3)] == [[1, -3, 5]] * 2


def test_another_model_is_refused() -> None:
    with pytest.raises(RuntimeError, match="size"):
        exchange_symmetric(torch.zeros(3), torch.zeros(4), 0.5)
