"""Checks saves byte by byte: every file there, of its size and checksum, with the tensors that the manifest names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import BaseModel, ConfigDict

from checkpoint.catalog import SaveCatalog
from checkpoint.chain import Chain, choose
from checkpoint.checked_reader import CheckedReader
from checkpoint.errors import SaveCorrupt, SaveIncomplete, SaveNotFound, StorageError
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
    """Why it cannot be restored: a fault of its own, or of the rows of a save that it continues."""


class VerifyReport(BaseModel):
    """All saves that were checked, oldest first."""

    model_config = ConfigDict(frozen=True)

    ok: bool
    saves: tuple[SaveCheck, ...]
    incomplete: tuple[str, ...]
    """Directories of saves that were never completed; nobody reads them, and they are no fault."""
    damaged: dict[str, str]
    """Saves whose manifest is damaged, so that they cannot be checked: id → what is wrong."""
    timelines: str | None
    """What is wrong with the records of timelines; nothing can be restored until it is put right."""
    newest: str | None
    """What a restore would take now: the youngest save whose whole chain is undamaged."""
    newest_exact: str | None
    """What a full recovery or a resume would take."""


def verify(
    store: SaveCatalog, save_id: str | None = None, on_save: Callable[[str], None] = lambda save_id: None
) -> VerifyReport:
    """Read every byte of every visible save, or of one and those it continues; and every record of a timeline.

    Args:
        store: of the run.
        save_id: check only the chain of this one.
        on_save: called with each save before it is read.

    Raises:
        SaveNotFound: there is no such save, or no save at all.
        SaveIncomplete: the chain of ``save_id`` has a gap.
        SaveCorrupt: the manifest of ``save_id`` is damaged.
    """
    timelines = None
    try:
        visible = store.list()
    except SaveCorrupt as error:
        timelines, visible = str(error), store.list_all()
    if save_id:
        store.read_manifest(save_id)  # says more than that it is not among the visible ones
    manifests: Sequence[Manifest] = choose(visible, save_id=save_id).chain.saves if save_id else visible
    damaged = {} if save_id else store.damaged()
    if not manifests and not damaged:
        raise SaveNotFound(f"{store.url}: no complete save")
    faults: dict[str, list[str]] = {}
    rows: dict[str, str] = {}
    states: dict[str, str] = {}
    for save in manifests:
        on_save(save.save_id)
        found = [(file, fault) for file in save.files if (fault := _fault(store, save, file)) is not None]
        faults[save.save_id] = [fault for _, fault in found]
        for file, fault in found:
            (rows if file.state is None else states).setdefault(save.save_id, fault)
    checks = [
        SaveCheck(
            save_id=save.save_id,
            files=len(save.files),
            bytes=sum(file.bytes for file in save.files),
            faults=tuple(faults[save.save_id]),
            unusable=unusable(manifests, save.save_id, rows, states),
        )
        for save in manifests
    ]
    return VerifyReport(
        ok=timelines is None and not damaged and all(check.unusable is None for check in checks),
        saves=tuple(checks),
        incomplete=tuple(store.incomplete()),
        damaged=damaged,
        timelines=timelines,
        newest=None if timelines else _newest(manifests, rows, states, exact=False),
        newest_exact=None if timelines else _newest(manifests, rows, states, exact=True),
    )


def check_rows(store: SaveCatalog, chain: Chain) -> None:
    """Read every file of rows in a chain once.

    Raises:
        SaveCorrupt: one is damaged.
        SaveIncomplete: one is missing.
        StorageError: one cannot be read.
    """
    for save in chain.saves:
        for file in save.files:
            if file.state is None:
                check_file(store, save, file)


def check_file(store: SaveCatalog, save: Manifest, file: FileEntry) -> None:
    """Read all of a file of a save.

    Raises:
        SaveCorrupt: it is not what was written, or lacks a tensor that the manifest names.
        SaveIncomplete: it is missing, or has another size.
        StorageError: it cannot be read.
    """
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


def _fault(store: SaveCatalog, save: Manifest, file: FileEntry) -> str | None:
    try:
        check_file(store, save, file)
    except (SaveCorrupt, SaveIncomplete, StorageError) as error:
        return str(error)
    return None


def _newest(manifests: Sequence[Manifest], rows: dict[str, str], states: dict[str, str], *, exact: bool) -> str | None:
    try:
        return choose(manifests, exact=exact, unusable=rows, stateless=states).chain.newest.save_id
    except SaveNotFound:
        return None
