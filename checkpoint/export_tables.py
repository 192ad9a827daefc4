"""Whole tables of a chain one after the other, in bounded memory, each file read at most twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from checkpoint.catalog import SaveCatalog
from checkpoint.chain import Chain
from checkpoint.piece import Piece
from checkpoint.piece_rows import PieceRows
from checkpoint.restore import restore
from checkpoint.verify import check_rows

GROUP_BYTES: Final = 64 << 20
"""Tables smaller than this are read together."""

_DTYPES: Final = {"fp32": torch.float32, "fp16": torch.float16}


class WholeTables:
    """Weights of whole tables, to be taken once each in the order of the chain's tables.

    Args:
        store: of the run.
        chain: from ``choose``.
        group_bytes: read neighbours together up to this size, or that of the largest table; ``None``: all at once.
        on_table: called with each table before it is read.
    """

    def __init__(
        self, store: SaveCatalog, chain: Chain, group_bytes: int | None, on_table: Callable[[str], None]
    ) -> None:
        self._store, self._chain, self._on_table = store, chain, on_table
        self._groups = _groups(chain, group_bytes)
        self._read: dict[str, Tensor] = {}
        self._checked = False

    def take(self, table: str) -> Tensor:
        """Rows × columns in the type of the live rows; not kept here.

        Raises:
            SaveCorrupt, DamagedSave: a file is missing or damaged.
        """
        if table not in self._read:
            self._fill(next(group for group in self._groups if table in group))
        return self._read.pop(table)

    def _fill(self, group: Sequence[str]) -> None:
        # A checksum is of a whole file, and a file has rows of all tables: by groups, it would be read for each again.
        by_ranges = len(self._groups) > 1
        if by_ranges and not self._checked:
            check_rows(self._store, self._chain)
            self._checked = True
        pieces = []
        for table in group:
            self._on_table(table)
            spec = self._chain.tables[table]
            weights = torch.empty(spec.rows, spec.dim, dtype=_DTYPES[spec.dtype])
            pieces.append(PieceRows(Piece(table, 0, spec.rows, 0, spec.dim), weights))
        restore(self._store, self._chain, pieces, check=not by_ranges, weights_only=True)
        self._read = {rows.piece.table: rows.weights for rows in pieces}


def _groups(chain: Chain, group_bytes: int | None) -> list[list[str]]:
    """Neighbouring tables that are read together."""
    if group_bytes is None:
        return [list(chain.tables)]
    sizes = {table: spec.rows * spec.dim * _DTYPES[spec.dtype].itemsize for table, spec in chain.tables.items()}
    most = max([group_bytes, *sizes.values()])
    groups: list[list[str]] = [[]]
    filled = 0
    for table, size in sizes.items():
        if groups[-1] and filled + size > most:
            groups.append([])
            filled = 0
        groups[-1].append(table)
        filled += size
    return groups
