"""Records of what a coordinator has decided: saves of this lineage, failures so far."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from checkpoint.manifest import SaveKind
from services.state.record import Count, Record, Seconds


class CoordinatorRecord(Record):
    """What a restarted coordinator goes on with, beside roles, splits and the budget.

    Attributes:
        run_id: names the actors.
        training: everything was set up, so that it can go on.
        total_samples: of the run.
        started_samples: trained before this process of the run began.
        useful_s: seconds trained.
        timeline: of the next save.
        parent: the save it continues.
        saves: kind and samples of those that count for the PLS.
        history: when saves were cut, as ``SaveHistory`` has it.
        row_losing_failures: for the mean time between them.
        failures: as in ``summary.json``.
        rolled_back_samples: by full recoveries.
        rolling_back: everybody is on the way back to a save; whoever finds it so does it again.
    """

    kind: ClassVar[str] = "coordinator"
    run_id: str
    training: bool
    total_samples: Count
    started_samples: Count = 0
    useful_s: Seconds = 0.0
    timeline: Count = 0
    parent: str | None = None
    saves: tuple[tuple[SaveKind, Count], ...] = ()
    history: dict[str, float | int | None] = Field(default_factory=dict)
    row_losing_failures: Count = 0
    failures: tuple[dict[str, Any], ...] = ()
    rolled_back_samples: Count = 0
    rolling_back: bool = False
