from __future__ import annotations

import torch

from trainer.config import EmbeddingConfig, ModelConfig
from trainer.data.batch import Batch
from trainer.pooling import MeanPooling
from trainer.tables import mean_pooled, pooled_shape, table_dims

_TABLES = ("a", "b", "c")


def test_a_table_has_its_own_settings_or_everybodys() -> None:
    model = ModelConfig(arch="dcnv2", embedding_dim=8, dense_arch=(8,))
    embedding = EmbeddingConfig.model_validate(
        {"pooling": "mean", "tables": {"b": {"dim": 4}, "c": {"pooling": "sum", "dim": 16}}}
    )
    assert table_dims(model, embedding, _TABLES) == {"a": 8, "b": 4, "c": 16}
    assert mean_pooled(embedding, _TABLES) == (True, True, False)
    assert pooled_shape(5, (8, 4, 16)) == (5, 28)
    assert pooled_shape(5, (8, 8)) == (5, 2, 8)


def _batch(lengths: torch.Tensor | None, size: int) -> Batch:
    return Batch(torch.zeros(size, 1), torch.zeros(size), torch.zeros(0, dtype=torch.int64), lengths, ())


def test_means_divide_by_the_number_of_ids_and_leave_empty_bags_and_sums_alone() -> None:
    lengths = torch.tensor([[1, 2, 0], [4, 4, 4], [3, 0, 5]])  # of features a, b, c
    for dims in ((8, 8, 8), (4, 8, 12)):
        pooling = MeanPooling(dims, (True, False, True))
        rows = torch.rand(pooled_shape(3, dims))
        expected = [part.clone() for part in rows.flatten(1).split(dims, 1)]
        scale = pooling.scale(_batch(lengths.flatten(), 3))
        assert scale is not None
        pooling.apply(scale, rows)
        expected[0] /= torch.tensor([[1.0], [2], [1]])
        expected[2] /= torch.tensor([[3.0], [1], [5]])
        torch.testing.assert_close(rows.flatten(1), torch.cat(expected, 1))


def test_one_id_everywhere_is_its_own_mean() -> None:
    assert MeanPooling((8, 8), (True, True)).scale(_batch(None, 3)) is None
