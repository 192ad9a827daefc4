"""``summary.json`` of a run, schema 1: what was trained, how well, how fast, what failed. Absent parts are null."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

State = Literal["SUCCEEDED", "FAILED", "CANCELLED"]


def _finite_or_none(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Number = Annotated[float | None, BeforeValidator(_finite_or_none)]
"""A figure that may not exist, such as the AUC of rows of one class; JSON has no NaN, so NaN becomes null."""


class _Part(BaseModel):
    """Unknown keys are ignored, so that a summary with additions from a later version can still be read."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class Samples(_Part):
    """Row accounting. ``trained`` counts each row once an epoch, ``repeated`` what was trained beyond that."""

    trained: int = 0
    lost: int = 0
    repeated: int | None = 0
    skipped: int = 0
    rejected_lines: int = 0


class Phases(_Part):
    """Where the worker threads' time went, in seconds summed over all threads."""

    input: float = 0.0
    lookup_wait: float = 0.0
    dense: float = 0.0
    push: float = 0.0
    sync_stall: float = 0.0
    other: float = 0.0


class Metrics(_Part):
    """Quality on held-out rows; ``progressive_logloss`` on the training rows, each predicted before it is trained."""

    auc: Number = None
    ne: Number = None
    logloss: Number = None
    accuracy: Number = None
    calibration: Number = None
    eval_samples: int = 0
    progressive_logloss: Number = None


class BestMetrics(Metrics):
    """The best evaluation of the run, by AUC, and how many samples had been trained by then."""

    at_samples: int = 0


class SyncSummary(_Part):
    """Synchronization of the dense replicas. ``avg_gap`` is in iterations between two syncs of a trainer."""

    mode: Literal["shadow", "foreground", "none"]
    algorithm: Literal["easgd", "ma", "bmuf"] | None = None
    syncs: int = 0
    avg_gap: Number = None
    elp: int
    worker_stall_s: float = 0.0


class ShardUse(_Part):
    """Memory of a shard's process: resident at most, with all it maps (its slabs too), beside what it is for."""

    shard_id: int
    rows_bytes: int
    optimizer_bytes: int
    peak_rss_bytes: int


class CheckpointSummary(_Part):
    """Saves taken and what they cost."""

    strategy: str
    interval_s: float
    full_saves: int = 0
    priority_saves: int = 0
    delta_saves: int = 0
    bytes: int = 0
    stall_s: float = 0.0
    write_s: float = 0.0


class Failure(_Part):
    """One death: who, why, what was done, seconds for each part of the recovery, and the PLS it was charged.

    ``samples_at_risk``: trained since everything was saved. ``pls_spent``, ``pls_effective``, ``pls_left``: of
    the run's budget, after this one.

    ``detect_s`` runs from the last sign of life (a heartbeat), so it is an upper bound. What did not happen is null.
    """

    role: str
    index: int
    cause: str
    at_samples: int
    mode: Literal["warm", "partial", "full", "none"] = "none"
    detect_s: Number = None
    reschedule_s: Number = None
    load_s: Number = None
    replay_s: Number = None
    pls: Number = None
    samples_at_risk: int | None = None
    pls_spent: Number = None
    pls_effective: Number = None
    pls_left: Number = None


class PredictionSummary(_Part):
    """What the trained model predicted: ``rows`` of ``files`` input files, in ``parts`` finished files.

    ``directory`` is in the run directory. ``not_finite_rows`` of the predictions are NaN: the model is broken.
    """

    directory: str
    files: int
    parts: int = 0
    rows: int = 0
    rejected_lines: int = 0
    not_finite_rows: int = 0


class Pls(_Part):
    """Portion of lost samples: allowed, spent, and by accesses to the lost rows."""

    budget: float
    spent: float
    effective: Number = None


class Precision(_Part):
    """Number formats of the dense part."""

    recipe: str
    fp8_tensor_fraction: Number = None
    zero_flip_fraction: Number = None


class Summary(_Part):
    """The whole file.

    ``throughput_samples_per_s`` is the steady state: start-up and evaluation are excluded. ``startup_s`` ends with the
    first training step.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    run: str
    state: State
    error: str | None = None
    samples: Samples = Samples()
    wall_s: float = 0.0
    startup_s: Number = None
    throughput_samples_per_s: Number = None
    phases_s: Phases | None = None
    metrics: Metrics | None = None
    best: BestMetrics | None = None
    sync: SyncSummary | None = None
    shards: tuple[ShardUse, ...] | None = None
    checkpoint: CheckpointSummary | None = None
    failures: tuple[Failure, ...] = ()
    predictions: PredictionSummary | None = None
    pls: Pls | None = None
    precision: Precision | None = None
    versions: dict[str, str] = Field(default_factory=dict)

    def to_json(self) -> str:
        """The file's text."""
        return self.model_dump_json(by_alias=True, indent=1)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the file so that a reader sees the old one or the whole new one, also after a crash."""
        target = Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with open(partial, "w", encoding="utf-8") as file:
                file.write(self.to_json() + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Summary:
        """Reads a file that ``write`` wrote.

        Raises:
            FileNotFoundError: there is none; the run is still going or died before it could write one.
            ValueError: it is no summary of schema 1.
        """
        target = Path(path)
        try:
            text = target.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{target} does not exist: the run has not finished, or this is not a run directory"
            ) from None
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise ValueError(f"{target} is not a summary of schema 1: {where}: {first['msg']}") from None
