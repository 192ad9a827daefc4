"""The peer trains the same model on the same batches, or the ratio says nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.cases import CASES, Case, KaggleDlrm, MlperfDcnv2
from benchmarks.throughput import peer_throughput
from benchmarks.torchrec_peer import build_model, sparse_features
from services.config import RunConfig
from services.config_file import dump_config
from trainer.data.batch import Batch
from trainer.data.dataset import open_dataset
from trainer.data.encoder import build_encoders
from trainer.data.lease_source import Done, Signal
from trainer.data.reader import BatchReader
from trainer.data.split import Lease
from trainer.dlrm import build_dense

torch.set_num_threads(1)

_SMALL: list[Case] = [KaggleDlrm("fp32", 16, 64, table_rows=40), MlperfDcnv2("fp32", 16, 64, table_rows=40)]


class _Leases:
    def __init__(self, leases: list[Lease]) -> None:
        self._left = iter(leases)

    def next(self) -> Lease | Signal:
        return next(self._left, Done)


def _first_batch(config: RunConfig) -> tuple[Batch, dict[str, int]]:
    dataset = open_dataset(config.data)
    encoders = build_encoders(dataset.schema, config.data)
    leases = [
        Lease(i, split, 1, "train", ((split.row_start, split.row_end),))
        for i, split in enumerate(dataset.plan_splits().train)
    ]
    reader = BatchReader(dataset, encoders, _Leases(leases), config.train.batch_size)
    batch = reader.get()
    reader.close()
    assert batch is not None
    return batch, encoders.rows


def test_names_tell_cases_apart() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert "BF16 B=2048 DCNv2" in names


@pytest.mark.parametrize("case", _SMALL, ids=lambda case: case.name)
def test_both_sides_compute_the_same_logits(case: Case, tmp_path: Path) -> None:
    """Pooled by hand from TorchRec's tables, our dense part with TorchRec's weights gives TorchRec's logits."""
    config = case.config(case.write_data(tmp_path), tmp_path / "runs")
    batch, rows = _first_batch(config)
    theirs = build_model(config, rows, batch.dense.shape[1])
    theirs.sparse_arch.to_empty(device="cpu")
    torch.manual_seed(5)
    tables = theirs.sparse_arch.embedding_bag_collection.embedding_bags
    for table in tables.values():
        torch.nn.init.normal_(table.weight, std=0.1)
    ours = build_dense(config.model, batch.dense.shape[1], len(rows), seed=0)
    weights = theirs.state_dict()
    ours.load_state_dict({name: value for name, value in weights.items() if not name.startswith("sparse_arch")})

    offsets = batch.offsets(len(rows)).tolist()
    pooled = torch.stack(
        [
            torch.stack(
                [
                    tables[name].weight[batch.values[offsets[bag] : offsets[bag + 1]]].sum(0)
                    for bag in range(feature * batch.size, (feature + 1) * batch.size)
                ]
            )
            for feature, name in enumerate(rows)
        ],
        dim=1,
    )
    logits = theirs(batch.dense, sparse_features(batch, list(rows))).squeeze(1)
    torch.testing.assert_close(ours(batch.dense, pooled), logits, rtol=1e-4, atol=1e-4)
    assert float(logits.detach().std()) > 0


def test_the_peer_gets_the_ids_of_the_files(tmp_path: Path) -> None:
    case = MlperfDcnv2("bf16", 16, 64, table_rows=40)
    data = case.write_data(tmp_path)
    config = case.config(data, tmp_path / "runs")
    batch, rows = _first_batch(config)
    features = sparse_features(batch, list(rows)).to_dict()
    with np.load(data / "day_0_sparse_multi_hot.npz") as first, np.load(data / "day_1_sparse_multi_hot.npz") as second:
        for number, (name, feature) in enumerate(features.items()):
            raw = np.concatenate([first[str(number)], second[str(number)]])[:16]  # days of 8 rows
            assert set(feature.lengths().tolist()) == {config.data.features[name].hotness}
            ids = feature.values().numpy().reshape(raw.shape)
            pairs = set(zip(raw.ravel().tolist(), ids.ravel().tolist(), strict=True))
            assert len(pairs) == len(np.unique(raw))  # a raw id is always the same row
            assert ids.max() < rows[name]


@pytest.mark.slow
def test_the_peer_trains_every_shape(tmp_path: Path) -> None:
    for case in (KaggleDlrm("bf16", 4, 128, table_rows=40), MlperfDcnv2("bf16", 4, 128, table_rows=40)):
        settings = tmp_path / "settings.yaml"
        settings.write_text(dump_config(case.config(case.write_data(tmp_path), tmp_path / "runs")), encoding="utf-8")
        assert peer_throughput(settings, tmp_path) > 0
