"""Pieces, requests and fresh tracker memory for the tests of trackers."""

from __future__ import annotations

import torch
from torch import Tensor

from checkpoint.piece import Piece
from checkpoint.priority.tracker import TensorSpec, Watched

PIECES = (Piece("user", 100, 500, 0, 8), Piece("sex", 0, 3, 0, 8), Piece("site", 0, 90, 0, 4))
WATCHED = Watched.of(PIECES, ("user", "site"))
BATCH = 32


def zeros(specs: dict[str, TensorSpec]) -> dict[str, Tensor]:
    return {name: torch.zeros(spec.numel, dtype=getattr(torch, spec.dtype)) for name, spec in specs.items()}


def request(number: int, low: int = 0) -> tuple[Tensor, Tensor]:
    """Request ``number``: bags of 0 to 3 ids, low ids more often than high ones; ids L, offsets T·B+1."""
    generator = torch.Generator().manual_seed(number)
    lengths = torch.randint(low, 4, (len(PIECES), BATCH), generator=generator)
    ids = [
        (torch.rand(int(count), generator=generator) ** 3 * piece.rows).long()
        for piece, count in zip(PIECES, lengths.sum(1), strict=True)
    ]
    offsets = torch.zeros(lengths.numel() + 1, dtype=torch.int64)
    torch.cumsum(lengths.view(-1), 0, out=offsets[1:])
    return torch.cat(ids), offsets


def ids_of(piece: int, ids: Tensor, offsets: Tensor) -> list[int]:
    """The ids that a request has for one piece."""
    return [int(row) for row in ids[offsets[piece * BATCH] : offsets[(piece + 1) * BATCH]]]
