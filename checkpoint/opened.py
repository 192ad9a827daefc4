"""Opening the files of a save, with a name for messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from checkpoint.catalog import SaveCatalog
from checkpoint.errors import SaveIncomplete
from checkpoint.manifest import FileEntry, Manifest


@contextmanager
def opened(store: SaveCatalog, save: Manifest, entry: FileEntry) -> Iterator[tuple[BinaryIO, str]]:
    """The open file and its name for messages.

    Raises:
        SaveIncomplete: it is missing, or has another size than the manifest says.
    """
    with store.open_file(save.save_id, entry) as file:
        yield file, f"save {save.save_id}, file {entry.path}"


def missing_file(store: SaveCatalog, save: Manifest) -> str | None:
    """What is wrong with the first file of the save that is missing or has another size; contents are not read."""
    for entry in save.files:
        try:
            store.open_file(save.save_id, entry).close()
        except SaveIncomplete as error:
            return str(error)
    return None
