"""Timelines: each full rollback of a run opens one, and hides what was saved after the save it goes back to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ConfigDict

from checkpoint.manifest import Manifest
from checkpoint.ticket import parse_save_id


class TimelineRecord(BaseModel):
    """``timelines/{n:04d}.json``, written before anything of the timeline; timeline 0 has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeline: int
    parent: int
    """The timeline that was left."""
    from_save: str | None
    """The save it starts from; ``None`` when it starts from the beginning, so that it sees no older save."""
    opened_unix_s: float


def horizon(records: Mapping[int, TimelineRecord], timeline: int) -> dict[int, int | None]:
    """How far into each timeline one can see from ``timeline``.

    Returns:
        Visible timelines, each with the youngest sequence that is visible; ``None`` where all are.

    Raises:
        KeyError: a timeline on the way has no record.
    """
    seen: dict[int, int | None] = {timeline: None}
    while timeline:
        origin = records[timeline].from_save
        parsed = parse_save_id(origin) if origin is not None else None
        if parsed is None:
            break
        timeline, sequence, _ = parsed
        seen[timeline] = sequence
    return seen


def visible(manifests: Iterable[Manifest], sight: Mapping[int, int | None]) -> list[Manifest]:
    """The saves within a horizon, oldest first."""

    def is_seen(save: Manifest) -> bool:
        limit = sight.get(save.timeline, -1)
        return limit is None or save.sequence <= limit

    return sorted((save for save in manifests if is_seen(save)), key=lambda save: save.sequence)
