"""Learning-rate schedule: linear warm-up, then constant or linear decay to zero."""

from __future__ import annotations

from typing import Literal


def learning_rate(
    base: float, samples: int, total_samples: int, warmup_samples: int, decay: Literal["none", "linear"]
) -> float:
    """Learning rate of the step that begins after ``samples`` trained samples of the whole run.

    Warm-up rises from 0 to ``base`` over ``warmup_samples``. From there ``linear`` falls to 0 at ``total_samples`` and
    stays 0 (repeated rows can carry a run past its total); ``none`` stays at ``base``. A warm-up as long as the run
    never reaches ``base``.

    Raises:
        ValueError: a count is negative, or ``linear`` has no total to decay to.
    """
    if samples < 0 or warmup_samples < 0:
        raise ValueError(f"samples ({samples}) and dense.warmup_samples ({warmup_samples}) must not be negative")
    if decay == "linear":
        if total_samples <= 0:
            raise ValueError(f"dense.decay=linear needs the run's number of samples, got {total_samples}")
        if samples >= total_samples:
            return 0.0
    if samples < warmup_samples:
        return base * samples / warmup_samples
    if decay == "none":
        return base
    return base * (total_samples - samples) / (total_samples - warmup_samples)
