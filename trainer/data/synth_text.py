"""Criteo text from arrays, without a loop over rows: fixed-width cells, then the unused bytes are dropped."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainer.data.synth_model import SynthRows

_INT_CELL: Final = 10  # sign, 8 digits, tab
_HEX_CELL: Final = 9
_TAB: Final = 9

_HEX = np.frombuffer(b"".join(b"%04x" % i for i in range(65536)), dtype="<u4")
_DIGITS = np.frombuffer(b"".join(b"%04d" % i for i in range(10000)), dtype="<u4")
_LEADING = np.frombuffer(b"".join((b"%d" % i).rjust(4, b"\0") for i in range(10000)), dtype="<u4")


def criteo_text(rows: SynthRows) -> bytes:
    """n lines: label, 13 integers (below 10^8), 26 × 8 hexadecimal digits; missing is empty."""
    count, integers = rows.counts.shape
    features = len(rows.categories)
    first_hex = 2 + integers * _INT_CELL
    cells = np.zeros((count, first_hex + features * _HEX_CELL), dtype=np.uint8)
    cells[:, 0] = rows.labels + np.uint8(ord("0"))
    cells[:, 1] = _TAB

    numbers = cells[:, 2:first_hex].reshape(count, integers, _INT_CELL)
    size = np.abs(rows.counts)
    high, low = size // 10_000, size % 10_000
    digits = np.stack((np.where(high > 0, _LEADING[high], 0), np.where(high > 0, _DIGITS[low], _LEADING[low])), axis=-1)
    digits[rows.counts_missing] = 0
    numbers[:, :, 0] = np.where(rows.counts < 0, ord("-"), 0)
    numbers[:, :, 1:9] = digits.astype("<u4").view(np.uint8)
    numbers[:, :, 9] = _TAB

    categories = rows.categories.T
    letters = np.stack((_HEX[categories >> np.uint64(16)], _HEX[categories & np.uint64(0xFFFF)]), axis=-1)
    letters[rows.categories_missing.T] = 0
    hexes = cells[:, first_hex:].reshape(count, features, _HEX_CELL)
    hexes[:, :, :8] = letters.view(np.uint8)
    hexes[:, :, 8] = _TAB
    hexes[:, -1, 8] = ord("\n")
    text: bytes = cells[cells != 0].tobytes()
    return text
