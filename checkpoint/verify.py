"""Checks saves byte by byte: every file there, of its size and checksum, with the tensors that the manifest names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from pydantic import BaseModel, ConfigDict

from checkpoint.catalog import SaveCatalog
from checkpoint.chain import choose
from checkpoint.checked_reader import CheckedReader
from checkpoint.errors import CheckpointError, SaveCorrupt, SaveIncomplete, SaveNotFound, StorageError
from checkpoint.listing import unusable
from checkpoint.manifest import FileEntry, Manifest
from checkpoint.opened import opened
from checkpoint.segment_tensors import find_slot, read_ids, tensor_names
from checkpoint.tensor_file import read_header


class SaveCheck(BaseModel):
    """One save; without ``faults`` it is what was written."""

    model_config = ConfigDict(frozen=True)

    save_id: str
    files: int
    bytes: int
    faults: tuple[str, ...]
    unusable: str | None
    """Why it cannot be restored: a fault of its own, or in the rows of a save that it continues."""


class VerifyReport(BaseModel):
    """All saves that were checked, oldest first."""

    model_config = ConfigDict(frozen=True)

    ok: bool
    saves: tuple[SaveCheck, ...]
    incomplete: tuple[str, ...]
    """Directories of saves that were never completed; nobody reads them."""
    damaged_manifests: dict[str, str] = {}
    """Saves that cannot be read at all, with what is wrong; they are passed over."""
    newest: str | None
    """What a restore would take now: the youngest undamaged save that continues undamaged rows."""
    newest_exact: str | None
    """What a full recovery or a resume would take."""


def verify(
    store: SaveCatalog, save_id: str | None = None, on_save: Callable[[str], None] = lambda save_id: None
) -> VerifyReport:
    """Read every byte of every visible save, or of one and those it continues.

    Args:
        store: of the run.
        save_id: check only the chain of this one.
        on_save: called with each save before it is read.

    Raises:
        SaveNotFound: there is no such save, or no save at all.
        SaveIncomplete: the chain of ``save_id`` has a gap.
    """
    visible = store.list()
    manifests: Sequence[Manifest] = choose(visible, save_id=save_id).chain.saves if save_id else visible
    broken = {} if save_id else _damaged_manifests(store)
    if not manifests:
        raise SaveNotFound(f"{store.url}: {'; '.join(broken.values()) or 'no complete save'}")
    faults: dict[str, list[str]] = {}
    in_rows: dict[str, str] = {}
    for save in manifests:
        on_save(save.save_id)
        found = [(file, fault) for file in save.files if (fault := _fault(store, save, file)) is not None]
        faults[save.save_id] = [fault for _, fault in found]
        of_rows = [fault for file, fault in found if file.state is None]
        if of_rows:
            in_rows[save.save_id] = of_rows[0]
    # A restore takes rows from the whole chain, states from its newest save alone.
    judged = {name: in_rows | ({name: own[0]} if own else {}) for name, own in faults.items()}
    checks = [
        SaveCheck(
            save_id=save.save_id,
            files=len(save.files),
            bytes=sum(file.bytes for file in save.files),
            faults=tuple(faults[save.save_id]),
            unusable=unusable(manifests, save.save_id, judged[save.save_id]),
        )
        for save in manifests
    ]
    return VerifyReport(
        ok=not broken and all(check.unusable is None for check in checks),
        saves=tuple(checks),
        incomplete=tuple(name for name in store.incomplete() if name not in broken),
        damaged_manifests=broken,
        newest=_newest(manifests, judged, exact=False),
        newest_exact=_newest(manifests, judged, exact=True),
    )


def _damaged_manifests(store: SaveCatalog) -> dict[str, str]:
    found = {}
    for save_id in store.incomplete():
        try:
            store.read_manifest(save_id)
        except SaveIncomplete:  # it has none: never completed
            continue
        except CheckpointError as error:
            found[save_id] = str(error)
    return found


def _fault(store: SaveCatalog, save: Manifest, file: FileEntry) -> str | None:
    try:
        with opened(store, save, file) as (opened_file, where):
            slots = read_header(opened_file, file.bytes, where)
            reader = CheckedReader(opened_file, file.bytes, file.checksum, where)
            for segment in file.segments:
                spec = save.tables[segment.table]
                for name in tensor_names(segment, spec):
                    find_slot(slots, segment, name, spec, where)
                if segment.sparse:
                    read_ids(reader, slots, segment, spec, where)
            reader.finish()
    except (SaveCorrupt, SaveIncomplete, StorageError) as error:
        return str(error)
    return None


def _newest(manifests: Sequence[Manifest], judged: Mapping[str, Mapping[str, str]], *, exact: bool) -> str | None:
    for save in sorted(manifests, key=lambda save: save.sequence, reverse=True):
        with suppress(SaveIncomplete):
            return choose(
                manifests, save_id=save.save_id, exact=exact, unusable=judged[save.save_id]
            ).chain.newest.save_id
    return None
