"""The text of ``manifest.json``: the manifest and, as its last key, the checksum of the text before."""

from __future__ import annotations

import json
import re

import xxhash
from pydantic import ValidationError

from checkpoint.errors import SaveCorrupt
from checkpoint.manifest import Manifest

_SEAL = ',"checksum":"xxh3_128:'
_DIGITS = 32
_SEALED = re.compile(rf'[0-9a-f]{{{_DIGITS}}}"}}\s*')
_FORMAT = 1


def to_text(manifest: Manifest) -> bytes:
    """One JSON object, sealed."""
    body = manifest.model_dump_json()[:-1]
    return f'{body}{_SEAL}{xxhash.xxh3_128_hexdigest(body.encode())}"}}\n'.encode()


def from_text(text: bytes, where: str) -> Manifest:
    """Inverse of ``to_text``.

    Raises:
        SaveCorrupt: it is torn or altered, of another format, or says something impossible.
    """
    body, seal, digest = text.decode(errors="replace").rpartition(_SEAL)
    if not seal or not _SEALED.fullmatch(digest):  # the last seal of a torn manifest is that of a file
        raise SaveCorrupt(f"{where}: {len(text)} bytes without a checksum at the end: torn, or not written by Penumbra")
    if digest[:_DIGITS] != xxhash.xxh3_128_hexdigest(body.encode()):
        raise SaveCorrupt(f"{where}: altered after it was written: the checksum at its end is not that of its text")
    fields = json.loads(body + "}")
    if fields.get("format") != _FORMAT:
        raise SaveCorrupt(f"{where}: format {fields.get('format')}, and this version of Penumbra reads {_FORMAT}")
    try:
        return Manifest.model_validate(fields)
    except ValidationError as error:
        raise SaveCorrupt(f"{where}: {error}") from error
