"""State that is not rows, such as a trainer's dense buffer: named tensors in one safetensors file of the save."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import xxhash
from safetensors.torch import save
from torch import Tensor

from checkpoint.manifest import FileEntry
from checkpoint.retry import RetryPolicy
from checkpoint.storage import Storage
from checkpoint.ticket import SaveTicket

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*")
_METADATA: Final = "__metadata__"


def write_state(
    ticket: SaveTicket,
    name: str,
    tensors: Mapping[str, Tensor],
    *,
    retry: RetryPolicy | None = None,
    storage_options: dict[str, Any] | None = None,
) -> FileEntry:
    """Write tensors durably; they must not change until this returns.

    Args:
        ticket: of the save.
        name: such as ``dense/trainer-0``; ``state-dense.trainer-0.safetensors`` is the file.
        tensors: of any shapes and dtypes.
        retry: how failures of the storage are tried again.
        storage_options: given to fsspec.

    Raises:
        ValueError: the name has other characters than letters, digits, ``_``, ``-`` and single slashes, or a tensor is
            named ``__metadata__``.
        StorageError: and its kinds.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"state name {name!r}: use letters, digits, '_', '-' and single slashes, as in dense/trainer-0"
        )
    if _METADATA in tensors:
        raise ValueError(f"state {name!r}: no tensor can be named {_METADATA!r} in a safetensors file")
    data = save(_apart(tensors))
    path = f"state-{name.replace('/', '.')}.safetensors"
    Storage(ticket.url, retry or RetryPolicy(), storage_options).write(data, path)
    return FileEntry(path=path, bytes=len(data), checksum=f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}", state=name)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors of which no two share memory (tied parameters, views), as safetensors asks."""
    found: dict[str, Tensor] = {}
    storages = set()
    for key, tensor in tensors.items():
        own = tensor.contiguous()
        storage = own.untyped_storage().data_ptr()
        found[key] = own.clone() if storage in storages else own
        storages.add(storage)
    return found
