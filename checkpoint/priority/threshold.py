"""The largest of many numbers, found by their threshold: passes of comparisons instead of a sort."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_CHUNK = 1 << 16
_SAMPLE = 1 << 12


def largest(values: Tensor, count: int) -> Tensor:
    """Positions of the ``count`` largest of ``values`` (R, int32), zeros and less never taken; ascending (int64).

    Exact: equal values at the threshold go to the lowest positions. A sample gives a first guess, from which the
    threshold is bracketed with doubled steps and halved: two or three passes over R as a rule, at most 64.
    """
    array = values.numpy()
    if count <= 0:
        return torch.empty(0, dtype=torch.int64)
    threshold = _threshold(array, count)
    taken = array >= threshold
    if threshold > 1:
        ties = np.flatnonzero(array == threshold - 1)
        taken[ties[: count - np.count_nonzero(taken)]] = True
    return torch.from_numpy(np.flatnonzero(taken))


def _threshold(array: NDArray[np.int32], count: int) -> int:
    """The lowest t ≥ 1 with at most ``count`` values ≥ t."""

    def fits(t: int) -> bool:
        return _at_least(array, t) <= count

    guess = _guess(array, count)
    step = 1
    if fits(guess):
        high = guess
        while high > 1:
            low = max(1, high - step)
            if not fits(low):
                break
            high, step = low, 2 * step
        else:
            return 1
    else:
        low = guess
        while not fits(high := low + step):
            low, step = high, 2 * step
    while high - low > 1:  # low does not fit, high does
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _guess(array: NDArray[np.int32], count: int) -> int:
    sample = array[:: max(1, array.size // _SAMPLE)]
    kept = count * sample.size // max(1, array.size)
    if kept >= sample.size:
        return 1
    return max(1, int(np.partition(sample, sample.size - 1 - kept)[sample.size - 1 - kept]))


def _at_least(array: NDArray[np.int32], t: int) -> int:
    if t > np.iinfo(np.int32).max:
        return 0
    found = np.empty(min(_CHUNK, array.size), np.bool_)
    total = 0
    for start in range(0, array.size, _CHUNK):
        part = array[start : start + _CHUNK]
        total += int(np.count_nonzero(np.greater_equal(part, t, out=found[: part.size])))
    return total
