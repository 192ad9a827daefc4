"""From a run directory, or any URL a person may name, to the catalog of its saves."""

from __future__ import annotations

from checkpoint.catalog import SAVES, SaveCatalog
from checkpoint.errors import CheckpointError, SaveCorrupt, SaveNotFound
from checkpoint.manifest import MANIFEST
from checkpoint.manifest_file import from_text
from checkpoint.retry import RetryPolicy
from checkpoint.storage import Storage
from checkpoint.ticket import SaveTicket

CHECKPOINTS = "checkpoints"
"""Where a run directory has them."""
_TICKET = "ticket.json"


def find_run(place: str) -> SaveCatalog:
    """Open the saves in ``place``, or in ``place/checkpoints``, whatever run they are of.

    Raises:
        SaveNotFound: there are none in either.
        SaveCorrupt: there are, but not one of them says whose they are.
    """
    for url in (place, f"{place.rstrip('/')}/{CHECKPOINTS}"):
        storage = Storage(url, RetryPolicy())
        names = storage.names(SAVES)
        if names:
            return SaveCatalog(url, run=_run(storage, names))
    raise SaveNotFound(
        f"no saves in {place} or {place.rstrip('/')}/{CHECKPOINTS}: name a run directory, such as runs/NAME, or the "
        "URL that the run saves to"
    )


def _run(storage: Storage, names: list[str]) -> str:
    for name in reversed(names):
        for file in (MANIFEST, _TICKET):
            try:
                text = storage.read(SAVES, name, file)
                if file == MANIFEST:
                    return from_text(text, f"{storage.url}/{SAVES}/{name}/{file}").run
                return SaveTicket.model_validate_json(text).run
            except (FileNotFoundError, CheckpointError, ValueError):
                continue
    raise SaveCorrupt(f"{storage.url}/{SAVES}: {len(names)} directories, of which none has a readable {MANIFEST}")
