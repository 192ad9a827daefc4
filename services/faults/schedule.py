"""From a plan to concrete occurrences: every law becomes times, the same ones for the same seed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.faults.plan import AtSamples, AtTime, ByLaw, Fault, FaultPlan, OnPhase

Moment = AtTime | AtSamples | OnPhase


@dataclass(frozen=True, slots=True)
class Series:
    """One fault of the plan and its occurrences, one after the other."""

    number: int
    """Of the fault in the plan, from 0."""
    fault: Fault
    moments: tuple[Moment, ...]


def expand(plan: FaultPlan) -> tuple[Series, ...]:
    """All occurrences of all faults. Each fault draws from its own generator: adding one moves no other."""
    return tuple(
        Series(number, fault, _moments(fault.when, np.random.default_rng([plan.seed, number])))
        for number, fault in enumerate(plan.faults)
    )


def _moments(when: AtTime | AtSamples | OnPhase | ByLaw, rng: np.random.Generator) -> tuple[Moment, ...]:
    if isinstance(when, ByLaw):
        return tuple(AtTime(at_s=float(at_s)) for at_s in _times_s(when, rng))
    return (when,) * (when.times if isinstance(when, OnPhase) else 1)


def _times_s(law: ByLaw, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Ascending seconds, of ``count`` occurrences."""
    if law.from_s is not None and law.to_s is not None:
        return np.sort(rng.uniform(law.from_s, law.to_s, law.count))
    assert law.mean_s is not None
    shape = law.shape or 1.0
    return np.cumsum(rng.gamma(shape, law.mean_s / shape, law.count))
