"""The fixture of the headline: costs fitted to the paper's totals, 56 h, one failure in 28 h, 8 shards."""

from __future__ import annotations

import numpy as np

from checkpoint.overhead import Costs
from checkpoint.pls import loss_shares
from checkpoint.save_policy import Situation
from checkpoint.simulation import SimulatedFailure

HOUR = 3600.0
RUN_S, MTBF_S = 56 * HOUR, 28 * HOUR
SHARES = [1 / 8] * 8
COSTS = Costs(save_s=330.0, load_s=150.0, reschedule_s=150.0, partial_load_s=150.0, partial_reschedule_s=150.0)


def situation(mtbf_s: float = MTBF_S, **changes: float) -> Situation:
    return Situation(COSTS, mtbf_s, loss_shares(SHARES), RUN_S, **changes)


def schedule(seed: int, mtbf_s: float = MTBF_S, shards: int = 8, at_once: int = 1) -> list[SimulatedFailure]:
    random = np.random.default_rng(seed)
    times = np.cumsum(random.exponential(mtbf_s, int(20 + 5 * RUN_S / mtbf_s)))
    return [
        SimulatedFailure(float(at), tuple(random.choice(shards, at_once, replace=False).tolist()))
        for at in times[times < RUN_S]
    ]
