"""The save that everybody goes back to: chosen once for all shards, so its contents are read before anybody does."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from checkpoint.catalog import SaveCatalog
from checkpoint.chain import Choice
from checkpoint.choosing import choose_complete
from checkpoint.errors import CheckpointError, SaveCorrupt, SaveIncomplete, SaveNotFound, StorageError
from checkpoint.manifest import FileEntry, Manifest
from checkpoint.verify import check_file

_READERS: Final = 8


def choose_undamaged(store: SaveCatalog, *, exact: bool = False) -> Choice:
    """The youngest chain of which every file is there and is what was written: all rows, and the newest save's state.

    Reads all of it once, several files at a time.

    Args:
        store: of the run.
        exact: take only the state of one instant.

    Raises:
        SaveNotFound: there is none; says why each was passed over.
        StorageError: there is none, but some could not be read, and may be undamaged.
    """
    damaged: dict[str, str] = {}
    stateless: dict[str, str] = {}
    unread: StorageError | None = None
    checked: set[tuple[str, str]] = set()
    with ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1), "checkpoint-reader") as readers:
        while True:
            try:
                choice = choose_complete(store, exact=exact, damaged=damaged, stateless=stateless)
            except SaveNotFound as error:
                unread = unread or _unreachable(store)
                if unread is not None:
                    raise StorageError(str(error)) from unread
                raise
            newest = choice.chain.newest
            files = [
                (save, file)
                for save in choice.chain.saves
                for file in save.files
                if (file.state is None or save is newest) and (save.save_id, file.path) not in checked
            ]
            faults = list(readers.map(partial(_fault, store), files))
            if not any(faults):
                return choice
            for (save, file), fault in zip(files, faults, strict=True):
                checked.add((save.save_id, file.path))
                if fault is not None:
                    (damaged if file.state is None else stateless).setdefault(save.save_id, str(fault))
                if isinstance(fault, StorageError):
                    unread = fault


def _unreachable(store: SaveCatalog) -> StorageError | None:
    """The first error of the storage that opening files meets."""
    for save in store.list():
        for file in save.files:
            try:
                store.open_file(save.save_id, file).close()
            except SaveIncomplete:
                continue
            except StorageError as error:
                return error
    return None


def _fault(store: SaveCatalog, item: tuple[Manifest, FileEntry]) -> CheckpointError | None:
    try:
        check_file(store, *item)
    except (SaveCorrupt, SaveIncomplete, StorageError) as error:
        return error
    return None
