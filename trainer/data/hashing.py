"""Mixing hashes: raw category values to table rows, and text to raw category values."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.data.block import I64, MISSING, RESERVED, U64


def mix64(values: U64) -> U64:
    """SplitMix64's finalizer (Steele et al., OOPSLA 2014): every input bit flips each output bit half of the time."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def hash_rows(values: U64, rows: NDArray[np.uint64] | np.uint64) -> NDArray[np.int64]:
    """Table row of each value: 0 for ``MISSING``, else 1…rows-1 by hash.

    Args:
        values: raw category values, any shape.
        rows: table rows (2…2^31-1), broadcast against ``values``.
    """
    mixed = mix64(values)
    mixed >>= np.uint64(32)
    mixed *= rows - np.uint64(1)  # the high half of hash × range: uniform without a slow modulo
    mixed >>= np.uint64(32)
    mixed += np.uint64(1)
    mixed *= values != MISSING
    return mixed.view(np.int64)


def text_value(text: str) -> int:
    """Stable raw category value of a token: itself for an integer of 32 bits, else a 64-bit hash."""
    if text.isascii() and text.isdigit() and len(text) < 11 and int(text) < MISSING:
        return int(text)
    value = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    return value ^ 1 if value in (MISSING, RESERVED) else value


@dataclass(frozen=True)
class HashEncoder:
    """Hashes values into a table of ``rows`` rows; row 0 is *missing*."""

    rows: int

    def __post_init__(self) -> None:
        if not 2 <= self.rows < 2**31:
            raise ValueError(f"a hash-encoded feature needs 2 to 2147483647 rows, got {self.rows}; set categories.rows")

    def encode(self, values: U64) -> I64:
        """Rows of ``values``, same shape."""
        return hash_rows(values, np.uint64(self.rows))
