"""SaveTicket: the permission to write files of one save, and where."""

from __future__ import annotations

import re
from typing import cast

from pydantic import BaseModel, ConfigDict

from checkpoint.manifest import SaveKind, TableSpec

_SAVE_ID = re.compile(r"(\d{4,})-(\d{8,})-(full|priority|delta)")


class SaveTicket(BaseModel):
    """What ``CheckpointStore.begin`` gives out; travels to the shards as JSON or pickled."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    save_id: str
    url: str
    """The save's directory."""
    run: str
    kind: SaveKind
    consistent: bool
    timeline: int
    sequence: int
    parent: str | None
    samples: int
    begun_unix_s: float
    tables: dict[str, TableSpec]
    shards: tuple[int, ...] | None = None
    """Those that own rows: the save is only complete with a file of each. ``None``: not known, and not checked."""


def save_id(timeline: int, sequence: int, kind: SaveKind) -> str:
    """Name of a save's directory."""
    return f"{timeline:04d}-{sequence:08d}-{kind}"


def parse_save_id(name: str) -> tuple[int, int, SaveKind] | None:
    """(timeline, sequence, kind) of a directory's name; ``None`` for anything that is not a save."""
    match = _SAVE_ID.fullmatch(name)
    if match is None:
        return None
    timeline, sequence, kind = int(match[1]), int(match[2]), cast(SaveKind, match[3])
    return (timeline, sequence, kind) if name == save_id(timeline, sequence, kind) else None  # 00000-… is no save's
