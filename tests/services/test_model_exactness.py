"""Every model, placement and pooling in float32 against TorchRec in one process, step by step from equal state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch

from checkpoint.piece import Piece
from services.transport.routing import order_pieces
from tests.services.ray_parts import ShardService, private_ray
from tests.services.torchrec_reference import State, TorchRecReference
from tests.services.training_run import Placement, TrainingRun, planned
from trainer.config import DenseConfig, EmbeddingConfig, ModelConfig
from trainer.data.batch import Batch
from trainer.tables import table_dims

_ROWS = {"site": 40, "user": 701, "day": 7, "item": 301}
_DIM, _DENSE, _BATCH, _STEPS = 8, 5, 32, 12
_DLRM: dict[str, Any] = {"embedding_dim": _DIM, "dense_arch": (16, _DIM), "over_arch": (16, 1)}
_DCN = _DLRM | {"arch": "dcnv2", "dcn_num_layers": 2, "dcn_low_rank_dim": 6}
_MIXED = {"site": {"dim": 4}, "user": {"dim": 16}, "item": {"dim": 12}}
_EPS = 1e-5


@pytest.fixture(scope="module")
def service() -> Iterator[ShardService]:
    with private_ray():
        yield ShardService("models", shards=2)


class _Case(NamedTuple):
    """A run and its reference; ``optimizer`` of the tables, dense parameters get SGD beside SGD, else Adagrad."""

    sharding: str
    optimizer: str = "exact_adagrad"
    transport: str = "slab"
    model: dict[str, Any] = _DLRM
    embedding: dict[str, Any] = {}  # noqa: RUF012
    dense: dict[str, Any] = {}  # noqa: RUF012
    weighted: bool = False
    multi_hot: bool = True
    column_pieces: int = 1

    def settings(self) -> tuple[ModelConfig, EmbeddingConfig, DenseConfig]:
        sgd = self.optimizer == "exact_sgd"
        embedding = {"optimizer": self.optimizer, "eps": _EPS, "learning_rate": 0.8 if sgd else 0.05}
        dense = {"optimizer": "sgd" if sgd else "adagrad", "eps": _EPS, "learning_rate": 0.3 if sgd else 0.02}
        return (
            ModelConfig.model_validate(self.model),
            EmbeddingConfig.model_validate(embedding | {"sharding": self.sharding} | self.embedding),
            DenseConfig.model_validate(dense | self.dense),
        )


def _batches(case: _Case, steps: int = _STEPS) -> list[Batch]:
    """Learnable batches; multi-hot bags hold 0 to 4 ids, some twice; weights lie between 0 and 2."""
    generator = torch.Generator().manual_seed(8)
    batches = []
    for _ in range(steps):
        lengths = torch.ones(len(_ROWS), _BATCH, dtype=torch.int64)
        if case.multi_hot:
            lengths = torch.randint(0, 5, lengths.shape, generator=generator)
        ids = torch.cat(
            [
                (torch.rand(int(own.sum()), generator=generator).square() * count).long()  # low ids are frequent
                for count, own in zip(_ROWS.values(), lengths, strict=True)
            ]
        )
        dense = torch.rand(_BATCH, _DENSE, generator=generator) * 3
        labels = (dense[:, 0] + torch.randn(_BATCH, generator=generator) > 1.5).float()
        weights = torch.rand(ids.numel(), generator=generator) * 2 if case.weighted else None
        batches.append(
            Batch(dense, labels, ids, lengths.view(-1) if case.multi_hot else None, spans=(), weights=weights)
        )
    return batches


def _start(
    service: ShardService, case: _Case, placement: Placement | None = None, wire: str = "fp32"
) -> tuple[TrainingRun, TorchRecReference]:
    model, embedding, dense = case.settings()
    dims = table_dims(model, embedding, list(_ROWS))
    placement = placement or planned(_ROWS, dims, embedding)
    return (
        TrainingRun(
            service, placement, case.transport, _ROWS, dims, _DENSE, _BATCH, model, embedding, dense, wire=wire
        ),
        TorchRecReference(
            _ROWS,
            dims,
            _DENSE,
            model,
            embedding.model_copy(update={"pooling": "sum"}) if case.weighted else embedding,
            dense,
            weighted=case.weighted,
            column_pieces=case.column_pieces,
        ),
    )


def _averaged(batch: Batch) -> Batch:
    """The weights of a mean, so that summing gives it: TorchRec refuses weighted means, fbgemm forgets its gradient."""
    assert batch.lengths is not None and batch.weights is not None
    return dataclasses.replace(batch, weights=batch.weights / torch.repeat_interleave(batch.lengths, batch.lengths))


def _step_by_step(
    run: TrainingRun, reference: TorchRecReference, batches: list[Batch], reference_batches: list[Batch] | None = None
) -> tuple[float, State, State]:
    """Largest distance after any step from equal state (losses included); the run's state before and after."""
    theirs = reference_batches or batches
    distances: list[float] = []
    expected: list[float] = []
    start = run.state()

    def before_step(step: int) -> None:
        present = run.state()
        if step:
            distances.append(present.distance(reference.state()))
        reference.load(present)
        expected.append(reference.step(theirs[step]))

    losses = run.train(batches, before_step)
    end = run.state()
    distances.append(end.distance(reference.state()))
    distances += [abs(mine - other) for mine, other in zip(losses, expected, strict=True)]
    return max(distances), start, end


_MEAN = {"pooling": "mean"}
_MEAN_OR_SUM = {"tables": {"site": {"pooling": "mean"}, "user": {"pooling": "mean"}}}
_CASES = {
    "column-wise sgd": _Case("column_wise", "exact_sgd"),
    "column-wise adagrad": _Case("column_wise", transport="object"),
    "column-wise adagrad one-hot": _Case("column_wise", multi_hot=False),
    "column-wise row-wise adagrad": _Case("column_wise", "exact_row_wise_adagrad", column_pieces=2),
    "dcnv2": _Case("table_wise", "exact_row_wise_adagrad", model=_DCN),
    "dcnv2 row-wise": _Case("row_wise", model=_DCN, transport="object"),
    "dcnv2 column-wise": _Case("column_wise", model=_DCN, multi_hot=False),
    "mixed dims": _Case("table_wise", "exact_row_wise_adagrad", model=_DCN, embedding={"tables": _MIXED}),
    "mixed dims one-hot": _Case("table_wise", model=_DCN, embedding={"tables": _MIXED}, multi_hot=False),
    "mixed dims row-wise": _Case("row_wise", model=_DCN, embedding={"tables": _MIXED}, transport="object"),
    "mean": _Case("table_wise", embedding=_MEAN),
    "mean row-wise": _Case("row_wise", "exact_row_wise_adagrad", embedding=_MEAN, transport="object"),
    "mean column-wise": _Case("column_wise", embedding=_MEAN),
    "mean or sum": _Case("row_wise", embedding=_MEAN_OR_SUM),
    "mean mixed dims": _Case("row_wise", model=_DCN, embedding=_MEAN | {"tables": _MIXED}),
    "weighted": _Case("table_wise", "exact_row_wise_adagrad", weighted=True),
    "weighted objects": _Case("table_wise", weighted=True, transport="object"),
    "weighted one-hot": _Case("table_wise", "exact_sgd", weighted=True, multi_hot=False),
    "weighted row-wise": _Case("row_wise", weighted=True),
    "weighted row-wise objects": _Case("row_wise", "exact_sgd", weighted=True, transport="object", multi_hot=False),
    "weighted column-wise": _Case("column_wise", weighted=True),
    "weighted mean": _Case("row_wise", weighted=True, embedding=_MEAN),
    "max gradient": _Case("row_wise", embedding={"max_gradient": 1e-3}),
    "max gradient of a mean": _Case("row_wise", embedding=_MEAN | {"max_gradient": 1e-3}),
    "gradient clipping": _Case("table_wise", "exact_sgd", dense={"gradient_clipping": 0.05}),
}


@pytest.mark.parametrize("name", _CASES)
def test_each_step_from_equal_state_is_torchrecs(service: ShardService, name: str) -> None:
    case = _CASES[name]
    run, reference = _start(service, case)
    batches = _batches(case)
    averaged = [_averaged(batch) for batch in batches] if name == "weighted mean" else None
    distance, start, end = _step_by_step(run, reference, batches, averaged)
    assert distance < 1e-6
    assert end.distance(start) > 0.02  # it did train


@pytest.mark.parametrize(("setting", "value"), [("max_gradient", 1e-3), ("pooling", "mean")])
def test_the_settings_make_a_difference(service: ShardService, setting: str, value: object) -> None:
    """Or else the cases above would prove nothing."""
    plain, changed = _Case("row_wise", "exact_sgd"), _Case("row_wise", "exact_sgd", embedding={setting: value})
    ends = []
    for case in (plain, changed):
        run, _ = _start(service, case)
        run.train(_batches(case, steps=2))
        ends.append(run.state())
    assert ends[0].distance(ends[1]) > 1e-4


def test_a_grid_of_rows_and_columns_is_torchrecs(service: ShardService) -> None:
    case = _Case("auto", model=_DCN, embedding={"tables": _MIXED, "pooling": "mean"}, weighted=True)
    pieces = (
        [Piece("site", 0, 40, 0, 4), Piece("user", 0, 300, 0, 4), Piece("user", 300, 701, 4, 16)],
        [
            Piece("user", 0, 300, 4, 16),
            Piece("user", 300, 701, 0, 4),
            Piece("day", 0, 7, 0, 8),
            Piece("item", 0, 301, 0, 12),
        ],
    )
    placement = tuple(order_pieces(own, list(_ROWS), _ROWS) for own in pieces)
    run, reference = _start(service, case, placement)
    batches = _batches(case)
    distance, _, _ = _step_by_step(run, reference, batches, [_averaged(batch) for batch in batches])
    assert distance < 1e-6


@pytest.mark.parametrize("optimizer", ["exact_sgd", "exact_adagrad", "exact_row_wise_adagrad"])
def test_fp16_rows_are_fbgemms_own(service: ShardService, optimizer: str) -> None:
    """Equal to TorchRec's FP16 tables up to one rounding of a row (2**-11 of its largest weight)."""
    case = _Case("row_wise", optimizer, embedding={"weights_precision": "fp16"})
    run, reference = _start(service, case)
    distance, start, end = _step_by_step(run, reference, _batches(case))
    largest = max(float(rows.abs().max()) for rows in end.rows.values())
    assert distance <= max(1e-6, largest * 2**-10)
    assert end.distance(start) > 0.02
    assert all(torch.equal(rows, rows.half().float()) for rows in end.rows.values())


@pytest.mark.parametrize("transport", ["slab", "object"])
@pytest.mark.parametrize(("wire", "ulp"), [("fp16", 2**-11), ("bf16", 2**-8)])
def test_a_narrow_wire_costs_a_rounding_of_rows_and_gradients(
    service: ShardService, transport: str, wire: str, ulp: float
) -> None:
    case = _Case("row_wise", "exact_sgd", transport=transport)
    exact, _ = _start(service, case)
    exact.train(_batches(case, steps=1))
    start = exact.state()
    narrow, _ = _start(service, case, wire=wire)
    before = narrow.state()
    narrow.train(_batches(case, steps=1))
    after = narrow.state()
    for table, rows in after.rows.items():
        change = start.rows[table] - before.rows[table]
        assert 0.0 < float((rows - start.rows[table]).abs().max()) < 16 * ulp * float(change.abs().max())
