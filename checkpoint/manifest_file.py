"""The text of ``manifest.json``."""

from __future__ import annotations

from pydantic import ValidationError

from checkpoint.errors import SaveCorrupt
from checkpoint.manifest import Manifest
from checkpoint.sealed import seal, unseal

_FORMAT = 1


def to_text(manifest: Manifest) -> bytes:
    """One JSON object, sealed."""
    return seal(manifest.model_dump_json())


def from_text(text: bytes, where: str) -> Manifest:
    """Inverse of ``to_text``.

    Raises:
        SaveCorrupt: it is torn or altered, of another format, or says something impossible.
    """
    fields = unseal(text, where)
    if fields.get("format") != _FORMAT:
        raise SaveCorrupt(f"{where}: format {fields.get('format')}, and this version of Penumbra reads {_FORMAT}")
    try:
        return Manifest.model_validate(fields)
    except ValidationError as error:
        raise SaveCorrupt(f"{where}: {error}") from error
