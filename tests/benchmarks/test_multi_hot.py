from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.multi_hot import write_days
from trainer.config import DataConfig
from trainer.data.dataset import open_dataset

_ROWS = [1000, 3, *[50] * 24]
_HOTNESS = [20, 1, *[2] * 24]


def _ids(folder: Path, day: int, feature: int) -> np.ndarray:
    with np.load(folder / f"day_{day}_sparse_multi_hot.npz") as lists:
        return np.asarray(lists[str(feature)])


def test_days_hold_all_rows_with_ids_inside_their_tables(tmp_path: Path) -> None:
    write_days(tmp_path, 1001, 3, _ROWS, _HOTNESS)
    days = [_ids(tmp_path, day, 0) for day in range(3)]
    assert [len(day) for day in days] == [333, 334, 334]
    for feature, (rows, hotness) in enumerate(zip(_ROWS, _HOTNESS, strict=True)):
        ids = np.concatenate([_ids(tmp_path, day, feature) for day in range(3)])
        assert ids.shape == (1001, hotness)
        assert ids.min() >= 0
        assert ids.max() < rows
    assert not np.array_equal(days[1], days[2])
    labels = np.load(tmp_path / "day_0_labels.npy")
    assert set(labels.ravel()) == {0, 1}

    write_days(tmp_path / "again", 1001, 3, _ROWS, _HOTNESS)
    assert np.array_equal(_ids(tmp_path / "again", 1, 0), days[1])


def test_frequencies_fall_as_one_over_the_rank(tmp_path: Path) -> None:
    write_days(tmp_path, 5000, 1, _ROWS, _HOTNESS)
    counts = np.sort(np.bincount(_ids(tmp_path, 0, 0).ravel(), minlength=1000))[::-1]
    ranks = np.arange(1000)
    expected = counts.sum() * np.log((ranks + 2) / (ranks + 1)) / np.log(1001)
    for rank in (0, 1, 2, 5, 10):
        assert abs(counts[rank] - expected[rank]) < 5 * np.sqrt(expected[rank])
    assert np.bincount(_ids(tmp_path, 0, 0).ravel()).argmax() != 0  # hot rows do not lie side by side


def test_the_product_reads_them(tmp_path: Path) -> None:
    write_days(tmp_path, 40, 2, _ROWS, _HOTNESS)
    dataset = open_dataset(DataConfig(format="npy_multi_hot", train=str(tmp_path), eval_fraction=0.0))
    splits = dataset.plan_splits()
    assert (splits.train_rows, splits.eval_rows) == (40, 0)
    block = next(dataset.read(splits.train[1], [(0, 20)], 20))
    values, lengths = block.categories[0]
    assert np.array_equal(values.reshape(20, 20), _ids(tmp_path, 1, 0))
    assert set(lengths) == {20}
