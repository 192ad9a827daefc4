"""What FP16 rows lose, measured on fbgemm itself, and that weights reach it."""

from __future__ import annotations

import pytest
import torch

from checkpoint.piece import Piece
from services.shard.fp16_rows import arrived_fraction, fp16_warning
from services.shard.tbe import PieceTable


def test_updates_below_half_a_step_vanish_in_fp16_and_only_there() -> None:
    assert arrived_fraction(1.0, torch.float16) == 0.0
    assert arrived_fraction(1.0, torch.float32) == pytest.approx(1.0, abs=1e-3)
    assert arrived_fraction(0.01, torch.float16) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("weight", [1.0, 0.4, 0.03])
def test_the_threshold_lies_between_a_4096th_and_a_2048th_of_the_weight(weight: float) -> None:
    assert arrived_fraction(weight, torch.float16, updates=1, size=weight / 4200) == 0.0
    assert arrived_fraction(weight, torch.float16, updates=1, size=weight / 2000) > 0.0


def test_the_warning_has_the_setting_and_the_measured_loss() -> None:
    text = fp16_warning()
    assert text.startswith("embedding.weights_precision=fp16")
    assert "of 200 updates of 0.0001, 0% arrive in a weight of 1" in text


def test_a_weight_multiplies_its_row_and_its_gradient() -> None:
    rows = torch.arange(20.0)
    table = PieceTable([Piece("a", 0, 5, 0, 4)], "exact_sgd", 0.0, {"weights": rows})
    ids, offsets, weights = torch.tensor([1, 2, 4]), torch.tensor([0, 2, 3]), torch.tensor([0.5, 2.0, 3.0])
    pooled = table.lookup(ids, offsets, weights)
    assert torch.equal(pooled, torch.stack([0.5 * rows[4:8] + 2 * rows[8:12], 3 * rows[16:20]]))
    before = rows.clone()
    table.update(torch.ones(2, 4), ids, offsets, 1.0, weights)
    assert (before - rows).view(5, 4)[:, 0].tolist() == [0.0, 0.5, 2.0, 0.0, 3.0]
