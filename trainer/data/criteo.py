"""The 40 columns of Criteo's click logs (Kaggle Display Advertising Challenge and Terabyte)."""

from __future__ import annotations

from typing import Final

from trainer.data.schema import FeatureSchema, FeatureSpec

LABEL: Final = "label"
DENSE: Final = tuple(f"I{i}" for i in range(1, 14))
SPARSE: Final = tuple(f"C{i}" for i in range(1, 27))
COLUMNS: Final = (LABEL, *DENSE, *SPARSE)
SCHEMA: Final = FeatureSchema(DENSE, tuple(FeatureSpec(name, multi_hot=False) for name in SPARSE))

MAX_DIGITS: Final = 18
"""Longest integer accepted in a dense column: it always fits 64 bits."""

EXPECTED: Final = (
    {LABEL: "0 or 1"}
    | dict.fromkeys(DENSE, f"an integer of at most {MAX_DIGITS} digits, or nothing")
    | dict.fromkeys(SPARSE, "8 hexadecimal digits, or nothing")
)
"""What each column may hold, in the words of an error message."""
