"""Synthetic data: what is reported is what was written, the same for the same seed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from trainer.config import DataConfig
from trainer.data.block import MISSING, RawBlock
from trainer.data.dataset import open_dataset
from trainer.data.synth import synthesize
from trainer.data.synth_model import CHUNK_ROWS, TABLE_ROWS, PlantedModel

ROWS = CHUNK_ROWS + 5000


def read_back(folder: Path, format: str) -> list[RawBlock]:
    dataset = open_dataset(DataConfig(format=format, train=str(folder), eval_fraction=0))  # type: ignore[arg-type]
    return [b for s in dataset.plan_splits().train for b in dataset.read(s, ((s.row_start, s.row_end),), 4096)]


def test_files_hold_the_rows_of_the_model_and_the_report_scores_them(tmp_path: Path) -> None:
    report = synthesize(tmp_path, ROWS, seed=4, max_table_rows=3000, files=3)
    blocks = read_back(tmp_path, "criteo_tsv")
    assert not any(block.rejected for block in blocks)
    chunks = list(PlantedModel(4, 3000).chunks(ROWS))
    labels = np.concatenate([chunk.labels for chunk in chunks])
    truth = np.concatenate([chunk.probabilities for chunk in chunks])
    categories = np.concatenate([np.where(c.categories_missing, MISSING, c.categories) for c in chunks], axis=1)
    counts = np.concatenate([chunk.counts for chunk in chunks])
    assert np.array_equal(np.concatenate([block.labels for block in blocks]), labels)
    assert np.array_equal(np.concatenate([block.categories for block in blocks], axis=1), categories)
    dense = np.concatenate([block.dense for block in blocks])
    np.testing.assert_allclose(dense, np.log1p(np.maximum(counts, 0)), rtol=1e-6)
    assert counts.min() < 0 and counts.max() > 10_000

    for part, score in ((slice(None), report.all_rows), (slice(ROWS - round(ROWS / 10), None), report.last_tenth)):
        assert score.rows == labels[part].size and score.start == (part.start or 0)
        assert score.bayes_auc == pytest.approx(roc_auc_score(labels[part], truth[part]), abs=1e-6)
        assert score.bayes_logloss == pytest.approx(log_loss(labels[part], truth[part]), rel=1e-9)
        assert score.base_rate == pytest.approx(labels[part].mean())
    assert report.all_rows.base_rate == pytest.approx(0.256, abs=0.02)
    assert report.all_rows.bayes_auc is not None and 0.75 < report.all_rows.bayes_auc < 0.85
    assert json.loads((tmp_path / "synth.json").read_text())["all_rows"]["bayes_auc"] == report.all_rows.bayes_auc
    for f, size in enumerate(report.table_rows.values()):
        distinct = np.unique(categories[f])
        assert size == min(TABLE_ROWS[f], 3000)
        assert distinct[distinct != MISSING].size <= size


def test_same_seed_same_rows_whatever_the_files(tmp_path: Path) -> None:
    for name, seed, format, files in (
        ("a", 1, "criteo_tsv", 1), ("b", 1, "criteo_tsv", 4), ("c", 1, "parquet", 2), ("d", 2, "criteo_tsv", 1),
    ):  # fmt: skip
        synthesize(tmp_path / name, 3001, seed, 1000, format, files)  # type: ignore[arg-type]
    one = (tmp_path / "a" / "part-00000.tsv").read_bytes()
    parts = sorted((tmp_path / "b").glob("*.tsv"))
    assert b"".join(path.read_bytes() for path in parts) == one
    assert [path.read_bytes().count(b"\n") for path in parts] == [750, 750, 750, 751]
    assert (tmp_path / "d" / "part-00000.tsv").read_bytes() != one
    text, parquet = read_back(tmp_path / "a", "criteo_tsv"), read_back(tmp_path / "c", "parquet")
    for field in ("dense", "labels"):
        pair = [np.concatenate([getattr(block, field) for block in blocks]) for blocks in (text, parquet)]
        assert np.array_equal(*pair)
    pair = [np.concatenate([block.categories for block in blocks], axis=1) for blocks in (text, parquet)]
    assert np.array_equal(*pair)


def test_the_signal_can_be_learnt() -> None:
    chunks = list(PlantedModel(0, 100_000).chunks(2 * CHUNK_ROWS))
    small = [f for f, size in enumerate(TABLE_ROWS) if size < 50]
    columns = [np.concatenate([chunk.categories[f] for chunk in chunks]) for f in small]
    one_hot = np.concatenate([(column[:, None] == np.unique(column)) for column in columns], axis=1).astype(np.float32)
    labels = np.concatenate([chunk.labels for chunk in chunks])
    model = LogisticRegression(max_iter=200).fit(one_hot[:CHUNK_ROWS], labels[:CHUNK_ROWS])
    auc = roc_auc_score(labels[CHUNK_ROWS:], model.decision_function(one_hot[CHUNK_ROWS:]))
    assert auc > 0.58  # eight small features alone, on rows not seen


def test_impossible_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rows must be at least 1"):
        synthesize(tmp_path, 0, 0, 10)
    with pytest.raises(ValueError, match="files must be from 1"):
        synthesize(tmp_path, 5, 0, 10, files=6)
    synthesize(tmp_path, 5, 0, 10)
    with pytest.raises(ValueError, match="already holds 1 part"):
        synthesize(tmp_path, 5, 0, 10)
