"""The state of a save that is not rows: dense parameters, their optimizer's, random generators, metrics."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from checkpoint.catalog import SaveCatalog
from checkpoint.checked_reader import CheckedReader
from checkpoint.errors import SaveNotFound
from checkpoint.manifest import Manifest
from checkpoint.opened import opened
from checkpoint.tensor_file import read_header


def read_state(store: SaveCatalog, manifest: Manifest, name: str) -> dict[str, Tensor]:
    """All tensors of the state ``name``, such as ``dense``; checked against the file's checksum.

    Raises:
        SaveNotFound: the save has no state of that name; lists those it has.
        SaveIncomplete, SaveCorrupt: its file is missing or damaged.
    """
    entry = next((file for file in manifest.files if file.state == name), None)
    if entry is None:
        known = ", ".join(repr(file.state) for file in manifest.files if file.state is not None)
        raise SaveNotFound(f"save {manifest.save_id} has no state {name!r}; it has {known or 'none'}")
    with opened(store, manifest, entry) as (file, where):
        slots = read_header(file, entry.bytes, where)
        reader = CheckedReader(file, entry.bytes, entry.checksum, where)
        tensors = {}
        for tensor, slot in sorted(slots.items(), key=lambda item: item[1].start):
            tensors[tensor] = torch.empty(slot.shape, dtype=slot.dtype)
            reader.read_into(slot.start, tensors[tensor])
        reader.finish()
    return tensors


def read_states(store: SaveCatalog, manifest: Manifest, names: Iterable[str]) -> dict[str, dict[str, Tensor]]:
    """Several states of one save, by name.

    Raises:
        SaveNotFound: the save lacks one of them.
        SaveIncomplete, SaveCorrupt: a file is missing or damaged.
    """
    return {name: read_state(store, manifest, name) for name in names}
