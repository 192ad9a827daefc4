"""Weights of multi-hot ids on their way into batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainer.config import ColumnsConfig, DataConfig, ListConfig
from trainer.data.batch import Batch
from trainer.data.dataset import open_dataset
from trainer.data.encoder import build_encoders
from trainer.data.lease_source import Done, Signal
from trainer.data.reader import BatchReader
from trainer.data.split import Lease

ROWS = [(i % 3, [0.5 + i + j for j in range(i % 3)]) for i in range(23)]


class Leases:
    def __init__(self, leases: list[Lease]) -> None:
        self._leases = leases

    def next(self) -> Lease | Signal:
        return self._leases.pop(0) if self._leases else Done


def batches(cfg: DataConfig, size: int) -> list[Batch]:
    dataset = open_dataset(cfg)
    splits = dataset.plan_splits().train
    leases = [Lease(i, s, 0, "train", ((s.row_start, s.row_end),)) for i, s in enumerate(splits)]
    reader = BatchReader(dataset, build_encoders(dataset.schema, cfg), Leases(leases), size)
    found = []
    while (batch := reader.get()) is not None:
        found.append(batch)
    reader.close()
    return found


@pytest.mark.parametrize("size", [1, 4, 7, 50])
def test_weights_follow_their_ids_across_splits(tmp_path: Path, size: int) -> None:
    lines = ["y,u,g,w", *(f"1,{i},{'|'.join('ab'[:n])},{'|'.join(map(str, w))}" for i, (n, w) in enumerate(ROWS))]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    columns = ColumnsConfig(label="y", categorical=("u",), lists={"g": ListConfig(weights="w")})
    cfg = DataConfig(format="csv", train=str(tmp_path), columns=columns, eval_fraction=0, rows_per_split=5)
    assert open_dataset(cfg).schema.weighted
    row = 0
    for batch in batches(cfg, size):
        assert batch.weights is not None and batch.lengths is not None
        assert batch.weights.numel() == batch.values.numel() == int(batch.lengths.sum())
        here = ROWS[row : row + batch.size]
        assert batch.lengths.tolist() == [1] * batch.size + [count for count, _ in here]
        assert batch.weights.tolist() == [1.0] * batch.size + [w for _, weights in here for w in weights]
        row += batch.size
    assert row == len(ROWS)


def test_no_weights_without_a_weight_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,g\n1,a|b\n0,\n")
    columns = ColumnsConfig(label="y", lists={"g": ListConfig()})
    cfg = DataConfig(format="csv", train=str(tmp_path), columns=columns, eval_fraction=0)
    (batch,) = batches(cfg, 2)
    assert batch.weights is None
    assert np.array_equal(batch.lengths, [2, 0])
