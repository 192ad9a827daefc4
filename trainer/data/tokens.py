"""Ids as text, a whole column at once: whole numbers below 2^32 are themselves, anything else is hashed."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainer.data.block import I64, MISSING, RESERVED, U64
from trainer.data.hashing import mix64
from trainer.data.swar import Bytes, decode_int, words_of

_KEEP_FIRST: Final = np.array([2 ** (8 * n) - 1 for n in range(9)], dtype=np.uint64)
_NUMBER_DIGITS: Final = 10


def token_values(buffer: Bytes, starts: I64, ends: I64) -> U64:
    """Raw category values of n tokens; an empty one is ``MISSING``.

    ``"7"`` has the value of the number 7, ``"007"`` does not. Other tokens get a 64-bit hash of their bytes, which
    depends on nothing else: 10^6 distinct tokens share a value with probability 3e-8.

    Args:
        buffer: padded text (see ``swar``).
        starts: index of each token's first byte, n.
        ends: one past each token's last byte, n.
    """
    lengths = ends - starts
    hashed = mix64(lengths.astype(np.uint64))
    words = words_of(buffer)
    left = np.flatnonzero(lengths)
    at = 0
    while left.size:  # eight bytes a round, of the tokens that have as many
        rest = lengths[left] - at
        hashed[left] = mix64(hashed[left] ^ (words[starts[left] + at] & _KEEP_FIRST[np.minimum(rest, 8)]))
        at += 8
        left = left[rest > 8]
    hashed ^= ((hashed == MISSING) | (hashed == RESERVED)).astype(np.uint64)
    first = buffer[starts]
    plain = np.flatnonzero(
        (lengths <= _NUMBER_DIGITS) & (first >= 0x30) & (first <= 0x39) & ((first != 0x30) | (lengths == 1))
    )
    numbers, bad = decode_int(buffer, starts[plain], ends[plain])
    good = numbers < MISSING
    if bad is not None:
        good &= ~bad
    hashed[plain[good]] = numbers[good]
    hashed[lengths == 0] = MISSING
    return hashed
