"""Settings of saves and of the quality budget that recovery may spend."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from checkpoint.manifest import Encoding

Strategy = Literal["auto", "full", "partial_vanilla", "cpr_scar", "cpr_mfu", "cpr_ssu", "cpr_adagrad"]

_Seconds = Annotated[float, Field(ge=0.0)]
_PositiveSeconds = Annotated[float, Field(gt=0.0)]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


class RetentionConfig(_Settings):
    """Which saves stay: whole chains (a full save and all that continues it), as ``checkpoint.retention`` has it.

    The newest ``keep_last``, ``null`` for all; of older ones a full save every ``keep_every_s`` seconds.
    """

    keep_last: Annotated[int, Field(ge=1)] | None = 2
    keep_every_s: _PositiveSeconds | None = None


class CostsConfig(_Settings):
    """Seconds that one event takes from training, where known; ``None`` is estimated from bytes until it is measured.

    ``save_s``: saving every row once. ``load_s`` and ``reschedule_s``: a full recovery, of everybody;
    ``partial_load_s`` and ``partial_reschedule_s``: of one shard. ``save_bytes_per_s`` and ``load_bytes_per_s``, of
    each shard, are what the estimate divides by.
    """

    save_s: _Seconds | None = None
    load_s: _Seconds | None = None
    reschedule_s: _Seconds = 15.0
    partial_load_s: _Seconds | None = None
    partial_reschedule_s: _Seconds = 2.0
    save_bytes_per_s: Annotated[float, Field(gt=0.0)] = 2e9
    load_bytes_per_s: Annotated[float, Field(gt=0.0)] = 5e8


class CheckpointConfig(_Settings):
    """When to save what, and how much of the training may be lost for it (docs/quality_budget.md).

    ``strategy``: ``full`` takes everybody back to one save after rows were lost; the others reload the lost shard
    only. ``partial_vanilla`` saves every row each time; ``cpr_*`` save the fraction ``priority_fraction`` (r) of rows
    that matter most, 1/r as often: by access counts (``cpr_mfu``), recent use (``cpr_ssu``), distance (``cpr_scar``,
    twice the memory) or the state of Adagrad (``cpr_adagrad``). Where partial recovery is cheaper than ``full``,
    ``auto`` is ``cpr_adagrad`` for tables trained by an Adagrad and ``cpr_mfu`` for SGD.
    ``pls_budget``: portion of samples that partial recoveries may lose over the run. ``full_every_rounds``: a ``cpr_*``
    strategy also writes a full, consistent save every so many rounds of 1/r priority saves, from which the whole job
    can resume; ``null``: only the first. ``max_consistent_age_s``: and whenever the newest consistent save is so old,
    as long as that costs less than a twentieth of the time; ``null``: never for its age. ``interval_s`` replaces the
    computed interval of a save of everything; not below what such a save takes.
    ``mtbf_s``: mean time between failures that lose rows; ``null``: a day, and what the run observes.
    ``expected_run_s``: length of the run for planning; a running one knows better. ``mfu_every``, ``ssu_every``: one
    push in so many is looked at.
    ``free_overhead``: saves that cost less than this portion of the time are taken although the budget does not ask
    for them. ``deltas``: so many delta saves, of the rows that changed, follow each full save of ``full`` and
    ``partial_vanilla``. ``at_end``: save when the run ends or is cancelled, so that it can be exported or gone on
    with. ``copy_share``: most of the time that saves may hold training up, within a save and from one to the next.
    ``url``: where to save, such as ``s3://bucket/run``, reachable from every node; ``null``: ``checkpoints/`` in the
    run's directory. ``save_timeout_s``: a save that takes longer is given up; ``pause_timeout_s``: so long a consistent
    one waits for all trainers. Without ``enabled`` nothing is saved.
    """

    enabled: bool = True
    url: str | None = None
    strategy: Strategy = "auto"
    pls_budget: Annotated[float, Field(ge=0.0, le=1.0)] = 0.1
    priority_fraction: Annotated[float, Field(ge=0.01, le=1.0)] = 0.125
    full_every_rounds: Annotated[int, Field(ge=1)] | None = 4
    interval_s: _PositiveSeconds | None = None
    max_consistent_age_s: _PositiveSeconds | None = 3600.0
    mtbf_s: _PositiveSeconds | None = None
    expected_run_s: _PositiveSeconds | None = None
    free_overhead: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.001
    deltas: Annotated[int, Field(ge=0)] = 0
    at_end: bool = True
    copy_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.03
    save_timeout_s: _PositiveSeconds = 600.0
    pause_timeout_s: _PositiveSeconds = 10.0
    encoding: Encoding = "fp32"
    mfu_every: Annotated[int, Field(ge=1)] = 6
    ssu_every: Annotated[int, Field(ge=1)] = 4
    retention: RetentionConfig = RetentionConfig()
    costs: CostsConfig = CostsConfig()

    @field_validator("pls_budget")
    @classmethod
    def _something_to_spend(cls, value: float) -> float:
        if not value:
            raise ValueError("a budget of 0 allows no partial recovery; set checkpoint.strategy=full instead")
        return value
