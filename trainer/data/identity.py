"""Ids that are row numbers already, or become so by a remainder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.data.block import I64, MISSING, U64


class IdRangeError(ValueError):
    """An id that has no row in a table of ``encoding: identity``."""


@dataclass(frozen=True)
class IdentityEncoder:
    """Id i has row i; there is no row for *missing*."""

    rows: int

    def encode(self, values: U64) -> I64:
        """Rows of ``values``, same shape.

        Raises:
            IdRangeError: an id is not below ``rows``.
        """
        if (values >= self.rows).any():
            raise IdRangeError(self.problem(int(values[values >= self.rows].flat[0])))
        return values.astype(np.int64)

    def problem(self, value: int) -> str:
        """What is wrong with an id that is not below ``rows``, and what to do."""
        found = (
            f"id {value}" if value < MISSING else "a missing value" if value == MISSING else "text or an id over 2^32"
        )
        return (
            f"{found} has no row: encoding identity takes ids from 0 to {self.rows - 1} (rows: {self.rows}); "
            "raise rows, or use encoding modulo or hash"
        )


@dataclass(frozen=True)
class ModuloEncoder:
    """Id i has row ``i % rows`` (MLPerf's ``max_ind_range``); *missing* has row 0."""

    rows: int

    def encode(self, values: U64) -> I64:
        """Rows of ``values``, same shape."""
        return modulo_rows(values, np.uint64(self.rows))


def modulo_rows(values: U64, rows: NDArray[np.uint64] | np.uint64) -> I64:
    """``values % rows``, 0 for ``MISSING``; ``rows`` is broadcast against ``values``."""
    remainders = values % rows
    remainders *= values != MISSING
    return remainders.view(np.int64)
