"""The live tables: Criteo Kaggle's shape under one fbgemm TBE with row-wise Adagrad."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.kaggle import table_rows
from checkpoint.manifest import TableSpec
from checkpoint.piece import Piece
from checkpoint.piece_rows import PieceRows
from services.shard.tbe import PieceTable

MAX_ROWS = 715_000
_OPTIMIZER = "exact_row_wise_adagrad"


@dataclass(frozen=True)
class Tables:
    """26 tables, the five largest cut to ``MAX_ROWS``: 4.1 M rows, 264 MB at dim 16 and 1.05 GB at dim 64."""

    rows: dict[str, int]
    dim: int
    pieces: tuple[PieceRows, ...]
    table: PieceTable

    @classmethod
    def build(cls, dim: int) -> Tables:
        """Allocate and fill."""
        rows = table_rows(MAX_ROWS)
        total = sum(rows.values())
        weights, sums = torch.rand(total * dim).sub_(0.5).mul_(0.01), torch.zeros(total)
        pieces, start = [], 0
        for name, count in rows.items():
            view = weights[start * dim : (start + count) * dim].view(count, dim)
            pieces.append(PieceRows(Piece(name, 0, count, 0, dim), view, {"sum": sums[start : start + count]}))
            start += count
        table = PieceTable([p.piece for p in pieces], _OPTIMIZER, 1e-8, {"weights": weights, "momentum1": sums})
        return cls(rows, dim, tuple(pieces), table)

    @property
    def specs(self) -> dict[str, TableSpec]:
        """For the manifest."""
        return {
            name: TableSpec(rows=rows, dim=self.dim, dtype="fp32", optimizer=_OPTIMIZER)
            for name, rows in self.rows.items()
        }

    @property
    def nbytes(self) -> int:
        """Rows and optimizer state."""
        return sum(piece.nbytes for piece in self.pieces)

    def state_dict(self) -> dict[str, Tensor]:
        """The same live tensors, as torch DCP takes them."""
        found = {}
        for piece in self.pieces:
            found[f"{piece.piece.table}.weight"] = piece.weights
            found[f"{piece.piece.table}.sum"] = piece.states["sum"]
        return found
