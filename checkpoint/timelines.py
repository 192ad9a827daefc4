"""Timelines: each full rollback of a run opens one, and hides what was saved after the save it goes back to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from checkpoint.errors import SaveCorrupt
from checkpoint.manifest import Manifest
from checkpoint.sealed import seal, unseal
from checkpoint.ticket import parse_save_id

REMEDY: Final = (
    "Without it nobody can say which saves a rollback hid: bring it back from a copy. Or move it, the later records "
    "and the saves of its and later timelines away, to see the saves as they were before that rollback"
)

_FILE = re.compile(r"(\d{4,})\.json")


class TimelineRecord(BaseModel):
    """``timelines/{n:04d}.json``, sealed, written before anything of the timeline; timeline 0 has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeline: int
    parent: int
    """The timeline that was left."""
    from_save: str | None
    """The save it starts from; ``None`` when it starts from the beginning, so that it sees no older save."""
    opened_unix_s: float

    @property
    def file_name(self) -> str:
        """Under ``timelines/``."""
        return _file_name(self.timeline)

    def to_text(self) -> bytes:
        """What is in the file."""
        return seal(self.model_dump_json())

    @classmethod
    def from_text(cls, text: bytes, number: int, where: str) -> TimelineRecord:
        """Inverse of ``to_text``.

        Raises:
            SaveCorrupt: it is torn or altered, or cannot be the record of timeline ``number``.
        """
        try:
            record = cls.model_validate(unseal(text, where))
        except SaveCorrupt as error:
            raise SaveCorrupt(f"{error}. {REMEDY}") from error
        except ValidationError as error:
            raise SaveCorrupt(f"{where}: {error}. {REMEDY}") from error
        origin = None if record.from_save is None else parse_save_id(record.from_save)
        if record.timeline != number:
            raise SaveCorrupt(f"{where}: it is the record of timeline {record.timeline}. {REMEDY}")
        if record.from_save is not None and (origin is None or origin[0] >= number):
            raise SaveCorrupt(f"{where}: timeline {number} cannot start from save {record.from_save!r}. {REMEDY}")
        return record


def timeline_of(file_name: str) -> int | None:
    """The timeline whose record a file is; ``None`` for any other file."""
    match = _FILE.fullmatch(file_name)
    number = int(match[1]) if match else 0
    return number if file_name == _file_name(number) else None  # 00001.json is no record


def _file_name(timeline: int) -> str:
    return f"{timeline:04d}.json"


def horizon(records: Mapping[int, TimelineRecord], timeline: int) -> dict[int, int | None]:
    """How far into each timeline one can see from ``timeline``.

    Args:
        records: of all timelines from 1 to ``timeline``.
        timeline: where one is.

    Returns:
        Visible timelines, each with the youngest sequence that is visible; ``None`` where all are.
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
    return sorted(
        (save for save in manifests if is_within(sight, save.timeline, save.sequence)), key=lambda save: save.sequence
    )


def is_within(sight: Mapping[int, int | None], timeline: int, sequence: int) -> bool:
    """Whether a save of that timeline and sequence is within a horizon."""
    limit = sight.get(timeline, -1)
    return limit is None or sequence <= limit
