"""Sealed JSON: one object whose last key is the checksum of the text before it."""

from __future__ import annotations

import json
from typing import Any

import xxhash

from checkpoint.errors import SaveCorrupt

_SEAL = ',"checksum":"xxh3_128:'


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
    if not mark:
        raise SaveCorrupt(f"{where}: {len(text)} bytes without a checksum at the end: torn, or not written by Penumbra")
    if digest.rstrip() != f'{xxhash.xxh3_128_hexdigest(body.encode())}"}}':
        raise SaveCorrupt(f"{where}: altered after it was written: the checksum at its end is not that of its text")
    found: dict[str, Any] = json.loads(body + "}")
    return found
