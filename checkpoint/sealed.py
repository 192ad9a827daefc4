"""Sealed JSON: one object whose last key is the checksum of the text before it."""

from __future__ import annotations

import json
import re
from typing import Any

import xxhash

from checkpoint.errors import SaveCorrupt

_SEAL = ',"checksum":"xxh3_128:'
_DIGITS = 32
_SEALED = re.compile(rf'[0-9a-f]{{{_DIGITS}}}"}}\s*')


def seal(text: str) -> bytes:
    """A JSON object that is not empty, with its checksum as one key more."""
    body = text[:-1]
    return f'{body}{_SEAL}{xxhash.xxh3_128_hexdigest(body.encode())}"}}\n'.encode()


def unseal(text: bytes, where: str) -> dict[str, Any]:
    """Inverse of ``seal``.

    Raises:
        SaveCorrupt: it is torn or altered.
    """
    body, mark, digest = text.decode(errors="replace").rpartition(_SEAL)
    if not mark or not _SEALED.fullmatch(digest):  # the last seal of a torn manifest is that of a file
        raise SaveCorrupt(f"{where}: {len(text)} bytes without a checksum at the end: torn, or not written by Penumbra")
    if digest[:_DIGITS] != xxhash.xxh3_128_hexdigest(body.encode()):
        raise SaveCorrupt(f"{where}: altered after it was written: the checksum at its end is not that of its text")
    found: dict[str, Any] = json.loads(body + "}")
    return found
