"""What FP16 rows cost: fbgemm rounds them to the nearest number on the CPU, so small updates are lost."""

from __future__ import annotations

import torch

from checkpoint.piece import Piece
from services.shard.tbe import PieceTable

_UPDATES, _SIZE = 200, 1e-4


def arrived_fraction(weight: float, precision: torch.dtype, updates: int = _UPDATES, size: float = _SIZE) -> float:
    """How much of ``updates`` SGD steps of ``size``, down from ``weight``, arrives in a row of that type (1.0: all)."""
    piece = Piece("probe", 0, 1, 0, 4)
    rows = torch.full((4,), weight).to(precision)
    table = PieceTable([piece], "exact_sgd", 0.0, {"weights": rows})
    start = float(rows[0])
    ids, offsets, grad = torch.zeros(1, dtype=torch.int64), torch.tensor([0, 1]), torch.ones(1, 4)
    for _ in range(updates):
        table.update(grad, ids, offsets, size)
    return (start - float(rows[0])) / (updates * size)


def fp16_warning() -> str:
    """What a run with FP16 rows should know, with the loss measured on this machine (milliseconds)."""
    unit, small = (arrived_fraction(weight, torch.float16) for weight in (1.0, 0.01))
    return (
        "embedding.weights_precision=fp16: rows are rounded to the nearest FP16 number after each update, as fbgemm "
        "has no stochastic rounding on the CPU; an update below 1/4096 to 1/2048 of its weight is lost. Measured: of "
        f"{_UPDATES} updates of {_SIZE:g}, {unit:.0%} arrive in a weight of 1 and {small:.0%} in one of 0.01 (fp32: "
        "100%)"
    )
