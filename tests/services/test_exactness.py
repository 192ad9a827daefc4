"""Deterministic mode in float32 against TorchRec in one process, through the product's own loop and real actors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from checkpoint.piece import Piece
from services.transport.routing import order_pieces
from tests.services.ray_parts import ShardService, private_ray
from tests.services.torchrec_reference import TorchRecReference
from tests.services.training_run import Placement, TrainingRun, planned
from trainer.config import DenseConfig, EmbeddingConfig, ModelConfig
from trainer.data.batch import Batch

_ROWS = {"site": 40, "user": 700, "day": 7, "item": 301}
_DIM, _DENSE, _BATCH, _STEPS = 8, 5, 32, 50
_MODEL = ModelConfig(embedding_dim=_DIM, dense_arch=(16, _DIM), over_arch=(16, 1))
_DIMS = dict.fromkeys(_ROWS, _DIM)
_RATES = {"exact_sgd": (0.3, 0.8), "exact_adagrad": (0.02, 0.05), "exact_row_wise_adagrad": (0.02, 0.05)}
"""(dense, embedding) learning rate."""
_EPS = 1e-5
"""Adagrad's first step of a weight is rate · g/(|g| + eps): with the default 1e-8, a gradient of 1e-7 left over from a
sum that cancels, known to 1e-11 only, would decide the fifth digit of that step."""


@pytest.fixture(scope="module")
def service() -> Iterator[ShardService]:
    with private_ray():
        yield ShardService("exactness", shards=2)


def _placement(sharding: str) -> Placement:
    return planned(_ROWS, _DIMS, EmbeddingConfig.model_validate({"sharding": sharding}))


def _batches(multi_hot: bool) -> list[Batch]:
    """Fifty learnable batches; in multi-hot ones bags hold 0 to 4 ids, some of them twice."""
    generator = torch.Generator().manual_seed(8)
    batches = []
    for _ in range(_STEPS):
        lengths = torch.ones(len(_ROWS), _BATCH, dtype=torch.int64)
        if multi_hot:
            lengths = torch.randint(0, 5, lengths.shape, generator=generator)
        ids = [
            (torch.rand(int(own.sum()), generator=generator).square() * count).long()  # low ids are frequent
            for count, own in zip(_ROWS.values(), lengths, strict=True)
        ]
        dense = torch.rand(_BATCH, _DENSE, generator=generator) * 3
        labels = (dense[:, 0] + torch.randn(_BATCH, generator=generator) > 1.5).float()
        batches.append(Batch(dense, labels, torch.cat(ids), lengths.view(-1) if multi_hot else None, spans=()))
    return batches


def _settings(optimizer: str) -> tuple[EmbeddingConfig, DenseConfig]:
    """Dense parameters get SGD beside ``exact_sgd``, Adagrad otherwise."""
    dense_rate, embedding_rate = _RATES[optimizer]
    kind = "sgd" if optimizer == "exact_sgd" else "adagrad"
    return (
        EmbeddingConfig.model_validate({"optimizer": optimizer, "learning_rate": embedding_rate, "eps": _EPS}),
        DenseConfig.model_validate({"optimizer": kind, "learning_rate": dense_rate, "eps": _EPS}),
    )


def _run(service: ShardService, placement: Placement, transport: str, optimizer: str) -> TrainingRun:
    embedding, dense = _settings(optimizer)
    return TrainingRun(service, placement, transport, _ROWS, _DIMS, _DENSE, _BATCH, _MODEL, embedding, dense)


def _reference(optimizer: str) -> TorchRecReference:
    return TorchRecReference(_ROWS, _DIMS, _DENSE, _MODEL, *_settings(optimizer))


_EVERYWHERE = [
    pytest.mark.parametrize("multi_hot", [False, True], ids=["one-hot", "multi-hot"]),
    pytest.mark.parametrize("transport", ["slab", "object"]),
    pytest.mark.parametrize("sharding", ["table_wise", "row_wise"]),
]


def _everywhere(test: Callable[..., None]) -> Callable[..., None]:
    for mark in _EVERYWHERE:
        test = mark(test)
    return test


@_everywhere
@pytest.mark.parametrize("optimizer", ["exact_sgd", "exact_adagrad", "exact_row_wise_adagrad"])
def test_each_step_from_equal_state_is_torchrecs(
    service: ShardService, optimizer: str, sharding: str, transport: str, multi_hot: bool
) -> None:
    run, batches, reference = (
        _run(service, _placement(sharding), transport, optimizer),
        _batches(multi_hot),
        _reference(optimizer),
    )
    start, distances, expected_losses = run.state(), [], []

    def before_step(step: int) -> None:
        present = run.state()
        if step:
            distances.append(present.distance(reference.state()))
        reference.load(present)
        expected_losses.append(reference.step(batches[step]))

    losses = run.train(batches, before_step)
    distances.append(run.state().distance(reference.state()))
    assert len(losses) == len(distances) == _STEPS
    assert max(distances) < 1e-6
    assert max(abs(a - b) for a, b in zip(losses, expected_losses, strict=True)) < 1e-6
    assert run.state().distance(start) > 0.1  # it did train


@_everywhere
def test_fifty_free_steps_with_sgd_stay_torchrecs(
    service: ShardService, sharding: str, transport: str, multi_hot: bool
) -> None:
    run, batches, reference = (
        _run(service, _placement(sharding), transport, "exact_sgd"),
        _batches(multi_hot),
        _reference("exact_sgd"),
    )
    reference.load(run.state())
    expected_losses = [reference.step(batch) for batch in batches]
    losses = run.train(batches)
    assert run.state().distance(reference.state()) < 1e-5
    assert max(abs(a - b) for a, b in zip(losses, expected_losses, strict=True)) < 1e-5
    assert sum(losses[-10:]) < sum(losses[:10])


def test_rows_start_equal_under_any_placement(service: ShardService) -> None:
    uneven = tuple(
        order_pieces(pieces, list(_ROWS), _ROWS)
        for pieces in (
            [Piece("site", 0, 1, 0, 8), Piece("user", 100, 700, 0, 8), Piece("item", 0, 301, 4, 8)],
            [
                Piece("site", 1, 40, 0, 8),
                Piece("user", 0, 100, 0, 8),
                Piece("item", 0, 301, 0, 4),
                Piece("day", 0, 7, 0, 8),
            ],
        )
    )
    table_wise = _run(service, _placement("table_wise"), "object", "exact_sgd").state()
    row_wise = _run(service, _placement("row_wise"), "object", "exact_sgd").state()
    assert table_wise.distance(row_wise) == 0.0
    run, batches = _run(service, uneven, "slab", "exact_sgd"), _batches(multi_hot=True)
    reference = _reference("exact_sgd")
    reference.load(table_wise)
    for batch, loss in zip(batches, run.train(batches), strict=True):
        assert abs(reference.step(batch) - loss) < 1e-5


@pytest.mark.parametrize("sharding", ["table_wise", "row_wise"])
def test_runs_in_deterministic_mode_are_equal_bit_for_bit(service: ShardService, sharding: str) -> None:
    """Twice over slabs, once over Ray objects."""
    outcomes = []
    for transport in ("slab", "slab", "object"):
        run = _run(service, _placement(sharding), transport, "exact_row_wise_adagrad")
        outcomes.append((run.train(_batches(multi_hot=True)), run.state()))
    losses, state = outcomes[0]
    for other_losses, other in outcomes[1:]:
        assert losses == other_losses
        assert state.distance(other) == 0.0
