"""Opening the files of a save, with a name for messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from checkpoint.catalog import SaveCatalog
from checkpoint.errors import SaveIncomplete, StorageError
from checkpoint.manifest import FileEntry, Manifest
from checkpoint.steady_file import SteadyFile


@contextmanager
def opened(store: SaveCatalog, save: Manifest, entry: FileEntry) -> Iterator[tuple[SteadyFile, str]]:
    """The open file and its name for messages.

    Raises:
        SaveIncomplete: it is missing, or has another size than the manifest says.
        StorageError: it cannot be opened, or not be read.
    """
    with store.open_file(save.save_id, entry) as file:
        yield file, f"save {save.save_id}, file {entry.path}"


def missing_rows(store: SaveCatalog, save: Manifest) -> str | None:
    """What is wrong with the first file of rows that is missing or has another size; contents are not read."""
    return _missing(store, save, [file for file in save.files if file.state is None])


def missing_state(store: SaveCatalog, save: Manifest) -> str | None:
    """The same of the files that hold other state, which are only read of the save that a restore ends with."""
    return _missing(store, save, [file for file in save.files if file.state is not None])


def _missing(store: SaveCatalog, save: Manifest, entries: Sequence[FileEntry]) -> str | None:
    for entry in entries:
        try:
            store.open_file(save.save_id, entry).close()
        except (SaveIncomplete, StorageError) as error:
            return str(error)
    return None
