"""One push of every group, at no fixed turn."""

from __future__ import annotations

import pytest

from checkpoint.priority.sampling import PushSampler


@pytest.mark.parametrize("every", [1, 2, 4, 7])
def test_one_of_every_group_and_not_always_the_same(every: int) -> None:
    sampler = PushSampler(every, seed=3)
    turns = [[sampler.take() for _ in range(every)] for _ in range(200)]
    assert all(sum(group) == 1 for group in turns)
    counts = [sum(column) for column in zip(*turns, strict=True)]
    assert min(counts) > 100 / every  # a fixed turn would leave the others at 0


def test_less_than_every_push_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="got 0"):
        PushSampler(0, 0)
