"""Records of what may be lost: the save policy, the saves, and what the quality budget was spent on."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from checkpoint.checkpoint_config import Strategy
from checkpoint.manifest import SaveKind
from services.state.record import Count, Part, Record, Seconds

_Portion = Annotated[float, Field(ge=0.0)]
_PositiveSeconds = Annotated[float, Field(gt=0.0)]


class PolicyRecord(Record):
    """How the run saves and recovers (``checkpoint.save_policy.SavePlan``, with the settings behind it).

    The one record that others change too, by compare-and-set (``penumbra policy set``).
    """

    kind: ClassVar[str] = "policy"
    strategy: Strategy
    mode: Literal["full", "partial"]
    """How lost rows are recovered."""
    pls_budget: Annotated[float, Field(gt=0.0, le=1.0)]
    priority_fraction: Annotated[float, Field(gt=0.0, le=1.0)]
    interval_s: _PositiveSeconds
    """T_save: between saves of everything, or of a round of priority saves."""
    save_every_s: _PositiveSeconds
    full_every_s: _PositiveSeconds | None
    """Between full, consistent saves besides; ``None``: only the first."""
    interval_override_s: _PositiveSeconds | None = None
    """``checkpoint.interval_s``; ``None``: computed."""
    mtbf_s: _PositiveSeconds | None = None
    """``checkpoint.mtbf_s``; ``None``: a day, and what the run observes."""
    reason: str


class SaveRecord(Record):
    """A save in the catalogue. Its manifest is what counts; this is a copy that is cheap to list."""

    kind: ClassVar[str] = "save"
    save_id: str
    save_kind: SaveKind
    consistent: bool
    timeline: Count
    sequence: Count
    parent: str | None
    samples: Count
    bytes: Count
    committed_unix_s: Seconds | None
    """``None``: it is being written."""

    @property
    def name(self) -> str:
        """The save's id; ids of a run sort by timeline and sequence."""
        return self.save_id


class PlsEntry(Part):
    """One failure whose rows were recovered partially."""

    at_unix_s: Seconds
    at_samples: Count
    shard_ids: tuple[Count, ...]
    pls: _Portion
    effective: _Portion | None
    """``None``: accesses to the lost rows were not counted."""


class PlsRecord(Record):
    """What partial recoveries have cost (``checkpoint.pls.PlsAccount``)."""

    kind: ClassVar[str] = "pls"
    total_samples: Annotated[int, Field(ge=1)]
    total_accesses: Annotated[int, Field(ge=1)]
    spent: _Portion
    effective: _Portion | None
    entries: tuple[PlsEntry, ...] = ()
    """The ledger, oldest first."""
