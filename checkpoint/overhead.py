"""What saving and recovering cost, as portions of a run's useful time (CPR, arXiv 2011.02999, overhead model).

Times in seconds. T_save is the interval between saves, T_fail the mean time between failures *that lose rows*: a
process that dies while its node holds its memory costs nothing here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that one event takes from training.

    Attributes:
        save_s: O_save, training time that saving every row once costs.
        load_s: O_load of a full recovery.
        reschedule_s: O_res of a full recovery.
        partial_load_s: of a partial recovery: only the lost shard loads.
        partial_reschedule_s: of a partial recovery.
    """

    save_s: float
    load_s: float
    reschedule_s: float
    partial_load_s: float
    partial_reschedule_s: float

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name} must be at least 0 s, got {getattr(self, name)}")

    @property
    def full_recovery_s(self) -> float:
        """Loading and rescheduling of everybody."""
        return self.load_s + self.reschedule_s

    @property
    def partial_recovery_s(self) -> float:
        """Loading and rescheduling of the lost shard."""
        return self.partial_load_s + self.partial_reschedule_s


@dataclass(frozen=True, slots=True)
class Overhead:
    """Portions of the useful time: what saving, recovering (load and reschedule) and lost work cost."""

    saving: float
    recovering: float
    lost_work: float

    @property
    def total(self) -> float:
        """All three."""
        return self.saving + self.recovering + self.lost_work


def full_overhead(interval_s: float, costs: Costs, mtbf_s: float) -> Overhead:
    """O_save/T_save + (O_load + T_save/2 + O_res)/T_fail: every failure takes everybody back to the last save."""
    return Overhead(costs.save_s / interval_s, costs.full_recovery_s / mtbf_s, interval_s / 2 / mtbf_s)


def partial_overhead(interval_s: float, costs: Costs, mtbf_s: float, extra_full_saves: float = 0.0) -> Overhead:
    """O_save/T_save + (O_load_p + O_res_p)/T_fail: nobody repeats work.

    ``extra_full_saves``: full saves per interval besides it, such as 1/4 for one every four rounds of priority saves.
    """
    saving = costs.save_s * (1.0 + extra_full_saves) / interval_s
    return Overhead(saving, costs.partial_recovery_s / mtbf_s, 0.0)


def full_interval_s(save_s: float, mtbf_s: float) -> float:
    """The interval of least full overhead, sqrt(2·O_save·T_fail) (Young, CACM 1974, first order)."""
    return math.sqrt(2.0 * save_s * mtbf_s)


def break_even_interval_s(costs: Costs, mtbf_s: float, full_total: float, extra_full_saves: float = 0.0) -> float:
    """The interval below which saving so often makes partial recovery dearer than ``full_total``; inf: always."""
    left = full_total - costs.partial_recovery_s / mtbf_s
    if left <= 0.0:
        return math.inf
    return costs.save_s * (1.0 + extra_full_saves) / left
