"""FaultPlan: what is done to whom, and when; read from YAML or a dictionary. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from services.faults.phases import BoardRole, PhaseName
from services.faults.storage_fault import StorageFault

_Seconds = Annotated[float, Field(ge=0.0)]
_PositiveSeconds = Annotated[float, Field(gt=0.0)]
_Count = Annotated[int, Field(ge=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AtTime(_Part):
    """``at_s`` seconds after the plan began."""

    at_s: _Seconds


class AtSamples(_Part):
    """When the run has trained ``at_samples`` samples (as it says itself in metrics.jsonl, about once a second)."""

    at_samples: Annotated[int, Field(ge=0)]


class OnPhase(_Part):
    """When the process is in ``phase`` for the ``entry``-th time from now; ``times``: again and again so.

    ``within_s``: give up after that long; ``None``: when the run ends.
    """

    phase: PhaseName
    entry: _Count = 1
    times: _Count = 1
    within_s: _PositiveSeconds | None = None


class ByLaw(_Part):
    """``count`` times at random: exponential or gamma gaps of ``mean_s``, or uniform from ``from_s`` to ``to_s``.

    Gamma gaps have the ``shape``; 1 is exponential, more is more regular.
    """

    law: Literal["exponential", "gamma", "uniform"]
    count: _Count
    mean_s: _PositiveSeconds | None = None
    shape: Annotated[float, Field(gt=0.0)] | None = None
    from_s: _Seconds | None = None
    to_s: _PositiveSeconds | None = None

    @model_validator(mode="after")
    def _own_parameters(self) -> ByLaw:
        needed = {"exponential": {"mean_s"}, "gamma": {"mean_s", "shape"}, "uniform": {"from_s", "to_s"}}[self.law]
        every = {"mean_s", "shape", "from_s", "to_s"}
        given = {name for name in every if getattr(self, name) is not None}
        if given != needed:
            wanted, found = " and ".join(sorted(needed)), ", ".join(sorted(given)) or "none of them"
            raise ValueError(f"law {self.law} is described by {wanted}; given: {found}")
        if self.from_s is not None and self.to_s is not None and self.from_s >= self.to_s:
            raise ValueError(f"from_s={self.from_s:g} must be below to_s={self.to_s:g}")
        return self


def _when(value: Any) -> str | None:
    """Which kind of ``when`` it is, by the key that only that kind has."""
    keys = value if isinstance(value, dict) else getattr(type(value), "model_fields", {})
    found = [key for key in ("at_s", "at_samples", "phase", "law") if key in keys]
    return found[0] if len(found) == 1 else None


When = Annotated[
    Annotated[AtTime, Tag("at_s")]
    | Annotated[AtSamples, Tag("at_samples")]
    | Annotated[OnPhase, Tag("phase")]
    | Annotated[ByLaw, Tag("law")],
    Discriminator(
        _when,
        custom_error_type="when",
        custom_error_message="exactly one of at_s, at_samples, phase and law says when",
    ),
]
ClockWhen = Annotated[
    Annotated[AtTime, Tag("at_s")] | Annotated[AtSamples, Tag("at_samples")] | Annotated[ByLaw, Tag("law")],
    Discriminator(
        _when, custom_error_type="when", custom_error_message="exactly one of at_s, at_samples and law says when"
    ),
]
"""For what hits no process: it has no phase."""


class Whom(_Part):
    """A role, and which of it; ``any`` is a random one of those that live."""

    role: BoardRole
    index: Annotated[int, Field(ge=0)] | Literal["any"] = "any"


class Kill(_Part):
    """SIGKILL."""

    do: Literal["kill"]
    whom: Whom
    when: When


class Stop(_Part):
    """SIGSTOP, and SIGCONT after ``hold_s``."""

    do: Literal["stop"]
    whom: Whom
    when: When
    hold_s: _PositiveSeconds


class StorageFailure(_Part):
    """The checkpoint storage (a ``faulty://`` URL) does ``fault`` for ``hold_s``."""

    do: Literal["storage"]
    fault: StorageFault
    when: ClockWhen
    hold_s: _PositiveSeconds


class StateStoreAway(_Part):
    """The state store's server answers nobody for ``hold_s`` (it is stopped)."""

    do: Literal["state_store_away"]
    when: ClockWhen
    hold_s: _PositiveSeconds


class PoisonBatch(_Part):
    """One batch of a trainer gets values that are not finite."""

    do: Literal["poison_batch"]
    when: ClockWhen
    index: Annotated[int, Field(ge=0)] | Literal["any"] = "any"


Fault = Annotated[Kill | Stop | StorageFailure | StateStoreAway | PoisonBatch, Field(discriminator="do")]


class FaultPlan(_Part):
    """Many faults, side by side; the occurrences of one follow one another.

    ``seed``: of the laws and of who is ``any``. ``start_samples``: the plan, its clock and its counts of entries begin
    when the run has trained that many. ``patience_s``: how long a fault that is due waits for a process to hit, such as
    one that is being replaced; then it counts as not injected.
    """

    seed: Annotated[int, Field(ge=0)] = 0
    start_samples: Annotated[int, Field(ge=0)] = 0
    patience_s: _PositiveSeconds = 10.0
    faults: Annotated[tuple[Fault, ...], Field(min_length=1)]
