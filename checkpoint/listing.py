"""The saves of a run, and for each whether it can be restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from checkpoint.catalog import SaveCatalog
from checkpoint.chain import choose
from checkpoint.errors import SaveIncomplete
from checkpoint.manifest import MANIFEST, Manifest, SaveKind
from checkpoint.opened import missing_rows, missing_state


class ListedSave(BaseModel):
    """One visible save."""

    model_config = ConfigDict(frozen=True)

    save_id: str
    kind: SaveKind
    consistent: bool
    timeline: int
    sequence: int
    parent: str | None
    created_unix_s: float
    samples: int
    bytes: int
    unusable: str | None
    """Why it cannot be restored: a file of its own, or one with rows of a save that it continues, is missing. Contents
    are not read."""


class Listing(BaseModel):
    """All of a run, oldest first."""

    model_config = ConfigDict(frozen=True)

    url: str
    run: str
    saves: tuple[ListedSave, ...]
    incomplete: dict[str, str]
    """Saves that were never completed: id → what is wrong."""
    damaged: dict[str, str]
    """Saves that were, and whose manifest is damaged: id → what is wrong."""


def listing(catalog: SaveCatalog) -> Listing:
    """Look at every manifest, and whether the files that it names are there."""
    manifests = catalog.list()
    rows = {save.save_id: fault for save in manifests if (fault := missing_rows(catalog, save)) is not None}
    states = {save.save_id: fault for save in manifests if (fault := missing_state(catalog, save)) is not None}
    return Listing(
        url=catalog.url,
        run=catalog.run,
        saves=tuple(
            ListedSave(
                **save.model_dump(include=set(ListedSave.model_fields)),
                bytes=sum(file.bytes for file in save.files),
                unusable=unusable(manifests, save.save_id, rows, states),
            )
            for save in manifests
        ),
        incomplete=dict.fromkeys(catalog.incomplete(), f"{MANIFEST} is missing: it was never completed"),
        damaged=catalog.damaged(),
    )


def unusable(
    manifests: Sequence[Manifest], save_id: str, rows: Mapping[str, str], states: Mapping[str, str]
) -> str | None:
    """Why a save cannot be restored, given the faults of single saves' rows and other state; ``None`` when it can."""
    try:
        choose(manifests, save_id=save_id, unusable=rows, stateless=states)
    except SaveIncomplete as error:
        return str(error)
    return None
