"""MLPerf's binary day files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.config import DataConfig
from trainer.data.block import RawBlock
from trainer.data.dataset import open_dataset
from trainer.data.errors import DataError

HOTNESS = [1 + f % 3 for f in range(26)]


def write_day(folder: Path, day: int, rows: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    data: dict[str, Any] = {
        "dense": rng.random((rows, 13), dtype=np.float32),
        "sparse": rng.integers(-(2**31), 2**31, (rows, 26), dtype=np.int32),
        "labels": rng.integers(0, 2, (rows, 1), dtype=np.int32),
        "lists": {str(f): rng.integers(0, 50, (rows, hot), dtype=np.int32) for f, hot in enumerate(HOTNESS)},
    }
    for name in ("dense", "sparse", "labels"):
        np.save(folder / f"day_{day}_{name}.npy", data[name])
    np.savez(folder / f"day_{day}_sparse_multi_hot.npz", **data["lists"])
    return data


def read(format: Any, path: Path, **settings: Any) -> list[RawBlock]:
    cfg = DataConfig(**{"format": format, "train": str(path), "eval_fraction": 0, "rows_per_split": 8, **settings})
    dataset = open_dataset(cfg)
    return [b for s in dataset.plan_splits().train for b in dataset.read(s, ((s.row_start, s.row_end),), 3)]


def test_days_come_back_in_order(tmp_path: Path) -> None:
    days = [write_day(tmp_path, day, 20, day) for day in (2, 10)]
    blocks = read("npy", tmp_path)
    assert np.array_equal(np.concatenate([b.dense for b in blocks]), np.concatenate([d["dense"] for d in days]))
    assert np.array_equal(np.concatenate([b.labels for b in blocks]), np.concatenate([d["labels"][:, 0] for d in days]))
    sparse = np.concatenate([d["sparse"] for d in days]).view(np.uint32)
    assert np.array_equal(np.concatenate([np.asarray(b.categories) for b in blocks], axis=1), sparse.T)


def test_multi_hot_lists(tmp_path: Path) -> None:
    data = write_day(tmp_path, 0, 20)
    blocks = read("npy_multi_hot", tmp_path)
    for f, hot in enumerate(HOTNESS):
        columns = [block.categories[f] for block in blocks]
        assert np.array_equal(np.concatenate([values for values, _ in columns]), data["lists"][str(f)].reshape(-1))
        assert set(np.concatenate([lengths for _, lengths in columns])) == {hot}


@pytest.mark.parametrize("format", ["npy", "npy_multi_hot"])
def test_bad_rows_are_set_apart(tmp_path: Path, format: str) -> None:
    data = write_day(tmp_path, 0, 6)
    data["dense"][1, 4], data["labels"][3] = np.nan, 2
    np.save(tmp_path / "day_0_dense.npy", data["dense"])
    np.save(tmp_path / "day_0_labels.npy", data["labels"])
    blocks = read(format, tmp_path)
    assert [(line.line, line.column, line.found) for b in blocks for line in b.rejected] == [
        (2, "I5", "nan"), (4, "label", "2"),
    ]  # fmt: skip
    assert np.array_equal(np.concatenate([b.dense for b in blocks]), data["dense"][[0, 2, 4, 5]])
    first = [values for block in blocks for values in [block.categories[25]]]
    if format == "npy":
        assert np.array_equal(np.concatenate(first), data["sparse"].view(np.uint32)[[0, 2, 4, 5], 25])
    else:
        assert np.array_equal(np.concatenate([v for v, _ in first]), data["lists"]["25"][[0, 2, 4, 5]].reshape(-1))


def test_unlabeled_days_need_no_labels(tmp_path: Path) -> None:
    write_day(tmp_path, 0, 5)
    (tmp_path / "day_0_labels.npy").unlink()
    assert sum(block.rows for block in read("npy", tmp_path, unlabeled=True)) == 5
    with pytest.raises(DataError, match=r"day_0_labels\.npy: no such file"):
        read("npy", tmp_path)


def test_damaged_days_are_errors(tmp_path: Path) -> None:
    data = write_day(tmp_path, 0, 9)
    np.save(tmp_path / "day_0_labels.npy", data["labels"][:8])
    with pytest.raises(DataError, match=r"has 9 rows, the other files of that day have \[8, 9\]"):
        read("npy", tmp_path)
    np.save(tmp_path / "day_0_labels.npy", data["labels"])
    np.save(tmp_path / "day_0_sparse.npy", data["sparse"][:, :25])
    with pytest.raises(DataError, match="expected are rows of 26 numbers"):
        read("npy", tmp_path)
    np.save(tmp_path / "day_0_sparse.npy", np.asfortranarray(data["sparse"]))
    with pytest.raises(DataError, match="ascontiguousarray"):
        read("npy", tmp_path)
    np.savez_compressed(tmp_path / "day_0_sparse_multi_hot.npz", **data["lists"])
    with pytest.raises(DataError, match=r"np\.savez, not np\.savez_compressed"):
        read("npy_multi_hot", tmp_path)
    np.savez(tmp_path / "day_0_sparse_multi_hot.npz", **{"0": data["lists"]["0"]})
    with pytest.raises(DataError, match="lacks the arrays 1, 2"):
        read("npy_multi_hot", tmp_path)
    (tmp_path / "day_0_sparse.npy").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"not an \.npy array"):
        read("npy", tmp_path)
    np.save(tmp_path / "day_0_sparse.npy", data["sparse"])
    whole = (tmp_path / "day_0_dense.npy").read_bytes()
    (tmp_path / "day_0_dense.npy").write_bytes(whole[:-20])
    with pytest.raises(DataError, match="ends before row 9 of 9"):
        read("npy", tmp_path)
    with pytest.raises(DataError, match="no file ends in _dense"):
        read("npy", tmp_path / "day_0_sparse.npy")
