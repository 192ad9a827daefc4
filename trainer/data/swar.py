"""Text to numbers without a loop: eight characters at a time inside a 64-bit word (SIMD within a register).

All functions index one byte buffer that has at least eight spare bytes before and after the text, because a field is
loaded as the eight bytes that start (hexadecimal) or end (decimal) at its edge.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainer.data.block import I64, MISSING, U64
from trainer.data.criteo import MAX_DIGITS

Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]

PAD_BYTES: Final = 16


def _each(byte: int) -> np.uint64:
    return np.uint64(byte * 0x0101010101010101)


_HIGH = _each(0x80)
_KEEP_LAST = np.array([0, *((2**64 - 1) ^ (2 ** (8 * (8 - n)) - 1) for n in range(1, 9))], dtype=np.uint64)


def words_of(buffer: Bytes) -> U64:
    """View of ``buffer`` with one little-endian 64-bit word starting at every byte."""
    return np.ndarray((buffer.size - 7,), dtype="<u8", buffer=buffer.data, strides=(1,))


def decode_hex(buffer: Bytes, starts: I64, ends: I64) -> tuple[U64, Bools | None]:
    """Fields of exactly eight hexadecimal digits; an empty field is ``MISSING``.

    Args:
        buffer: padded text.
        starts: index of each field's first byte, any shape.
        ends: one past each field's last byte, same shape.

    Returns:
        The values, and which fields are malformed (``None``: none is).
    """
    lengths = ends - starts
    word = words_of(buffer)[starts]
    bad = _not_hex(word) | (lengths != 8)
    # One nibble per byte, then neighbours are paired: bytes, half words, the word. The first character is the lowest
    # byte of a little-endian word and the highest nibble of the value.
    letters = word >> np.uint64(6)
    letters &= _each(0x01)
    letters *= np.uint64(9)
    word &= _each(0x0F)
    word += letters
    for shift, mask in ((4, 0x00FF00FF00FF00FF), (8, 0x0000FFFF0000FFFF), (16, 0x00000000FFFFFFFF)):
        low = word >> np.uint64(2 * shift)
        word <<= np.uint64(shift)
        word |= low
        word &= np.uint64(mask)
    if bad.any():
        empty = lengths == 0
        word[empty] = MISSING
        bad &= ~empty
    return word, bad if bad.any() else None


def _not_hex(word: U64) -> Bools:
    """True where any of the eight bytes is not one of 0-9, a-f, A-F."""
    plain = word & _each(0x7F)
    digit = (plain + _each(0x80 - 0x30)) & ~(plain + _each(0x7F - 0x39))
    plain |= _each(0x20)
    letter = (plain + _each(0x80 - 0x61)) & ~(plain + _each(0x7F - 0x66))
    digit |= letter
    digit &= ~word
    digit &= _HIGH
    wrong: Bools = digit != _HIGH
    return wrong


def decode_int(buffer: Bytes, starts: I64, ends: I64) -> tuple[U64, Bools | None]:
    """Decimal integers of at most 18 digits, negative ones and empty fields as 0 (what the dense transform needs).

    Args and returns are those of ``decode_hex``.
    """
    negative = buffer[starts] == 0x2D
    lengths = ends - starts
    negative &= lengths > 0
    digits = lengths - negative
    word = words_of(buffer)[ends - 8]
    word ^= _each(0x30)
    word &= _KEEP_LAST[np.minimum(digits, 8)]
    bad: Bools = (((word + _each(0x76)) | word) & _HIGH) != 0
    bad |= (digits == 0) & negative
    for shift, scale, mask in (
        (8, 10, 0x00FF00FF00FF00FF),
        (16, 100, 0x0000FFFF0000FFFF),
        (32, 10000, 0x00000000FFFFFFFF),
    ):
        high = word * np.uint64(scale)
        word >>= np.uint64(shift)
        word += high
        word &= np.uint64(mask)
    for at in zip(*np.nonzero(digits > 8), strict=True):  # rare: longer than a word
        text = buffer[starts[at] + negative[at] : ends[at]].tobytes()
        bad[at] = not (text.isdigit() and len(text) <= MAX_DIGITS)
        word[at] = 0 if bad[at] else int(text)
    word[negative] = 0
    return word, bad if bad.any() else None
