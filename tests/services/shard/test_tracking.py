"""What a save does to a shard's counters and marks is undone to the last bit, and what that takes is known."""

from __future__ import annotations

import pytest
import torch

from checkpoint.checkpoint_config import Strategy
from checkpoint.piece import Piece
from checkpoint.piece_rows import PieceRows
from services.shard.tracking import Tracking, TrackingSpec

ROWS = 200_000


def tracking(strategy: Strategy) -> tuple[Tracking, dict[str, torch.Tensor]]:
    pieces = [
        PieceRows(Piece("big", 0, ROWS, 0, 4), torch.rand(ROWS, 4), {"sum": torch.rand(ROWS)}),
        PieceRows(Piece("small", 0, 7, 0, 4), torch.rand(7, 4), {"sum": torch.rand(7)}),
    ]
    spec = TrackingSpec(strategy, ("big",), deltas=True, mfu_every=1)
    arrays = {
        name: torch.zeros(one.numel, dtype=getattr(torch, one.dtype))
        for name, one in Tracking.specs(spec, [piece.piece for piece in pieces], "float32").items()
    }
    found = Tracking(spec, pieces, arrays)
    found.start()
    ids = torch.randint(0, ROWS, (5000,), generator=torch.Generator().manual_seed(1))
    found.observe(torch.cat([ids, ids[:9] % 7]), torch.tensor([0, 5000, 5009]), [0, 5000, 5009])
    for piece in pieces:
        piece.states["sum"] += 1
    return found, arrays


@pytest.mark.parametrize("strategy", ["cpr_mfu", "cpr_adagrad", "cpr_ssu", "partial_vanilla"])
@pytest.mark.parametrize("kind", ["full", "delta"])
def test_a_save_that_fails_leaves_no_trace(strategy: Strategy, kind: str) -> None:
    found, arrays = tracking(strategy)
    before = {name: array.clone() for name, array in arrays.items()}
    chosen = found.selections(kind)  # type: ignore[arg-type]
    undos = []
    for index, rows in enumerate((ROWS, 7)):
        ids = chosen.get(index)
        cuts = [slice(0, rows // 3), slice(rows // 3, rows)] if ids is None else [ids[:2], ids[2:]]
        undos += [found.on_copied(index, cut) for cut in cuts]
    found.settle()  # as if it were durable
    assert found.pending_accesses == 0
    assert not arrays["dirty_rows"].any()
    if kind == "full":
        row_bytes = 1 / 8 + 1 + (4 if strategy == "cpr_adagrad" else 0)  # marks, small counts, paths
        assert found.undo_bytes <= row_bytes * ROWS + 4 * 5000 + 64
    assert found.undo_bytes > 0
    while undos:
        undos.pop()()
    assert all(torch.equal(array, before[name]) for name, array in arrays.items())


def test_what_scar_keeps_is_not_counted() -> None:
    found, _ = tracking("cpr_scar")
    found.selections("full")
    found.on_copied(0, slice(0, ROWS))
    assert 0 < found.undo_bytes < 2 * ROWS
