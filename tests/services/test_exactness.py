"""Deterministic mode in float32 against TorchRec in one process, through the product's own loop and real actors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from checkpoint.piece import Piece
from services.placement.planner import plan_placement
from services.placement.tables import TableSpec
from services.transport.client import ShardedEmbeddingClient
from services.transport.routing import Router, order_pieces
from tests.services.ray_parts import ShardService, private_ray, shard_specs
from tests.services.torchrec_reference import State, TorchRecReference
from trainer.config import DenseConfig, EmbeddingConfig, ModelConfig
from trainer.data.batch import Batch
from trainer.dense_optimizer import DenseOptimizer
from trainer.dense_step import DenseReplica
from trainer.dlrm import build_dense
from trainer.flat_parameters import FlatLayout
from trainer.hogwild import HogwildWorker
from trainer.ledger import Ledger

_ROWS = {"site": 40, "user": 700, "day": 7, "item": 301}
_DIM, _DENSE, _BATCH, _STEPS = 8, 5, 32, 50
_MODEL = ModelConfig(embedding_dim=_DIM, dense_arch=(16, _DIM), over_arch=(16, 1))
_RATES = {"exact_sgd": (0.3, 0.8), "exact_adagrad": (0.02, 0.05), "exact_row_wise_adagrad": (0.02, 0.05)}
"""(dense, embedding) learning rate."""
_EPS = 1e-5
"""Adagrad's first step of a weight is rate · g/(|g| + eps): with the default 1e-8, a gradient of 1e-7 left over from a
sum that cancels, known to 1e-11 only, would decide the fifth digit of that step."""

Placement = tuple[tuple[Piece, ...], ...]


@pytest.fixture(scope="module")
def service() -> Iterator[ShardService]:
    with private_ray():
        yield ShardService("exactness", shards=2)


def _placement(sharding: str) -> Placement:
    """What TorchRec's planner gives two shards."""
    placement = plan_placement(
        [TableSpec(table, count, _DIM) for table, count in _ROWS.items()],
        EmbeddingConfig.model_validate({"sharding": sharding}),
        (2,),
        (1 << 30,),
    )
    assert set(placement.sharding.values()) == {sharding}
    return tuple(order_pieces(placement.pieces[shard_id], list(_ROWS), _ROWS) for shard_id in (0, 1))


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


class _Source:
    """Hands out batches as a reader does."""

    def __init__(self, batches: list[Batch]) -> None:
        self._waiting = list(batches)

    def get(self, block: bool = True) -> Batch | None:
        return self._waiting.pop(0) if self._waiting else None


class _RecordingLedger(Ledger):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def trained(self, batch: Batch, loss: float, positives: int, first_pass: bool) -> None:
        super().trained(batch, loss, positives, first_pass)
        self.losses.append(loss)


class _Run:
    """One trainer, one thread, lookahead 0: the product's worker over the service's shards."""

    def __init__(self, service: ShardService, placement: Placement, transport: str, optimizer: str) -> None:
        self._service, self._placement, self._optimizer = service, placement, optimizer
        service.load(shard_specs(placement, _ROWS, _DIM, optimizer, _EPS))
        build = functools.partial(build_dense, _MODEL, _DENSE, len(_ROWS), 5)
        module, kind = build(), "sgd" if optimizer == "exact_sgd" else "adagrad"
        self._layout = FlatLayout.of(module)
        dense_optimizer = DenseOptimizer(DenseConfig.model_validate({"optimizer": kind, "eps": _EPS}))
        self._weights = torch.empty(self._layout.numel)
        self._layout.copy_from(module, self._weights)
        self._dense_state = torch.zeros(dense_optimizer.state_numel(self._layout.numel))
        self._replica = DenseReplica(self._layout, self._weights, self._dense_state, dense_optimizer, build)
        self._client = ShardedEmbeddingClient(
            service.next_trainer(),
            0,
            0,
            Router(list(_ROWS), _ROWS, _DIM, placement),
            service.targets(transport),
            batch=_BATCH,
            lookahead=0,
            wire="fp32",
        )

    def train(self, batches: list[Batch], before_step: Callable[[int], None] = lambda step: None) -> list[float]:
        """Train on ``batches``; ``before_step`` runs when a step's lookup is answered, before anything is updated."""
        ledger, steps = _RecordingLedger(), iter(range(len(batches)))

        def rates(started_samples: int) -> tuple[float, float]:
            before_step(next(steps))
            return _RATES[self._optimizer]

        HogwildWorker(
            self._replica,
            "fp32",
            self._client,
            _Source(batches),
            None,
            ledger,
            rates,
            lambda: self._weights,
            lambda batch: True,
            lambda: False,
            lambda: 0.0,
            lookahead=0,
            pooled_shape=(_BATCH, len(_ROWS), _DIM),
            pooled_dtype=torch.float32,
        ).run()
        return ledger.losses

    def state(self) -> State:
        """What the shards and the trainer hold now, put together to whole tables."""
        import ray

        rows = {table: torch.full((count, _DIM), torch.nan) for table, count in _ROWS.items()}
        momentum: dict[str, Tensor] = {}
        if self._optimizer != "exact_sgd":
            wide = self._optimizer == "exact_adagrad"
            momentum = {t: torch.full((count, _DIM) if wide else (count,), torch.nan) for t, count in _ROWS.items()}
        held = ray.get([shard.read_rows.remote() for shard in self._service.shards])
        for pieces, arrays in zip(self._placement, held, strict=True):
            for name, tables in (("weights", rows), ("momentum1", momentum)):
                if not tables:
                    continue
                flat, start = torch.from_numpy(arrays[name]), 0
                for piece in pieces:
                    target = tables[piece.table][piece.row_start : piece.row_end]
                    target.copy_(flat[start : start + target.numel()].view_as(target))
                    start += target.numel()
                assert start == flat.numel()
        names = [slot.name for slot in self._layout.slots]
        dense = [view.clone() for view in self._layout.views(self._weights)]
        sums = [view.clone() for view in self._layout.views(self._dense_state)] if self._dense_state.numel() else []
        return State(rows, momentum, dict(zip(names, dense, strict=True)), dict(zip(names, sums, strict=False)))


def _reference(optimizer: str) -> TorchRecReference:
    dense_rate, embedding_rate = _RATES[optimizer]
    return TorchRecReference(
        _ROWS,
        _DIM,
        _DENSE,
        _MODEL.dense_arch,
        _MODEL.over_arch,
        optimizer=optimizer,
        eps=_EPS,
        embedding_rate=embedding_rate,
        dense_rate=dense_rate,
        dense_eps=_EPS,
    )


def _distance(one: State, other: State) -> float:
    """Largest difference of any row, optimizer state or dense value."""
    largest = 0.0
    for part in ("rows", "momentum", "dense", "dense_sum"):
        mine, theirs = getattr(one, part), getattr(other, part)
        assert mine.keys() == theirs.keys()
        for name, tensor in mine.items():
            largest = max(largest, float((tensor - theirs[name].view_as(tensor)).abs().max()))
    return largest


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
        _Run(service, _placement(sharding), transport, optimizer),
        _batches(multi_hot),
        _reference(optimizer),
    )
    start, distances, expected_losses = run.state(), [], []

    def before_step(step: int) -> None:
        present = run.state()
        if step:
            distances.append(_distance(present, reference.state()))
        reference.load(present)
        expected_losses.append(reference.step(batches[step]))

    losses = run.train(batches, before_step)
    distances.append(_distance(run.state(), reference.state()))
    assert len(losses) == len(distances) == _STEPS
    assert max(distances) < 1e-6
    assert max(abs(a - b) for a, b in zip(losses, expected_losses, strict=True)) < 1e-6
    assert _distance(run.state(), start) > 0.1  # it did train


@_everywhere
def test_fifty_free_steps_with_sgd_stay_torchrecs(
    service: ShardService, sharding: str, transport: str, multi_hot: bool
) -> None:
    run, batches, reference = (
        _Run(service, _placement(sharding), transport, "exact_sgd"),
        _batches(multi_hot),
        _reference("exact_sgd"),
    )
    reference.load(run.state())
    expected_losses = [reference.step(batch) for batch in batches]
    losses = run.train(batches)
    assert _distance(run.state(), reference.state()) < 1e-5
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
    table_wise = _Run(service, _placement("table_wise"), "object", "exact_sgd").state()
    row_wise = _Run(service, _placement("row_wise"), "object", "exact_sgd").state()
    assert _distance(table_wise, row_wise) == 0.0
    run, batches = _Run(service, uneven, "slab", "exact_sgd"), _batches(multi_hot=True)
    reference = _reference("exact_sgd")
    reference.load(table_wise)
    for batch, loss in zip(batches, run.train(batches), strict=True):
        assert abs(reference.step(batch) - loss) < 1e-5


@pytest.mark.parametrize("sharding", ["table_wise", "row_wise"])
def test_runs_in_deterministic_mode_are_equal_bit_for_bit(service: ShardService, sharding: str) -> None:
    """Twice over slabs, once over Ray objects."""
    outcomes = []
    for transport in ("slab", "slab", "object"):
        run = _Run(service, _placement(sharding), transport, "exact_row_wise_adagrad")
        outcomes.append((run.train(_batches(multi_hot=True)), run.state()))
    losses, state = outcomes[0]
    for other_losses, other in outcomes[1:]:
        assert losses == other_losses
        assert _distance(state, other) == 0.0
