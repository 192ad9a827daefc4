"""When a run would save what, how it would recover lost rows, and the numbers behind that."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SaveCosts(_Part):
    """Seconds that one event takes from training; ``estimated`` names those computed from bytes, not set."""

    save_s: float
    load_s: float
    reschedule_s: float
    partial_load_s: float
    partial_reschedule_s: float
    estimated: tuple[str, ...] = ()


class OverheadShares(_Part):
    """Portions of useful time."""

    saving: float
    recovering: float
    lost_work: float
    total: float


class SaveOption(_Part):
    """One way to save and recover.

    Attributes:
        interval_s: of saving everything once.
        bounded_by: what sets it.
        overhead: what it costs.
        expected_pls: portion of lost samples to expect over the run, first order.
        exact_expected_pls: the same summed over the intervals; ``None`` without ``checkpoint.expected_run_s``.
    """

    interval_s: float
    bounded_by: str
    overhead: OverheadShares
    expected_pls: float
    exact_expected_pls: float | None


class SavesReport(_Part):
    """The answer of ``penumbra plan`` to when and what to save.

    Attributes:
        strategy: chosen, never ``auto``.
        mode: of recovering lost rows.
        reason: why.
        interval_s: of saving everything once.
        save_every_s: between saves.
        full_every_s: between full, consistent saves; ``None``: only the first.
        full_bytes: of a save of everything.
        save_bytes: of one of the strategy's saves.
        tracker_bytes: memory that priorities take.
        prioritized: tables whose rows have priorities; the others are saved whole each time.
        pls_budget: what partial recoveries may spend.
        mtbf_s: mean time between failures that lose rows.
        mtbf_given: whether ``checkpoint.mtbf_s`` says so; else a day is assumed until a run observes more.
        loses: what one such failure takes, ``node`` or ``shard``.
        mean_share: portion of the rows lost with it, on average.
        worst_share: at worst.
        run_s: ``checkpoint.expected_run_s``.
        costs: what was planned with.
        full: the best full recovery can do.
        partial: the best partial recovery can do within the budget.
    """

    strategy: str
    mode: Literal["partial", "full"]
    reason: str
    interval_s: float
    save_every_s: float
    full_every_s: float | None
    full_bytes: int
    save_bytes: int
    tracker_bytes: int
    prioritized: tuple[str, ...]
    pls_budget: float
    mtbf_s: float
    mtbf_given: bool
    loses: Literal["node", "shard"]
    mean_share: float
    worst_share: float
    run_s: float | None
    costs: SaveCosts
    full: SaveOption
    partial: SaveOption
