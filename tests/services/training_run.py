"""One trainer's own loop over real shard actors, and what it and they hold afterwards."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from checkpoint.piece import Piece
from services.placement.planner import plan_placement
from services.placement.tables import TableSpec
from services.transport.client import POOLED_TYPE, ShardedEmbeddingClient
from services.transport.routing import Router, order_pieces
from tests.services.ray_parts import ShardService, shard_specs
from tests.services.torchrec_reference import State
from trainer.config import DenseConfig, EmbeddingConfig, ModelConfig
from trainer.data.batch import Batch
from trainer.dense_optimizer import DenseOptimizer
from trainer.dense_step import DenseReplica
from trainer.dlrm import build_dense
from trainer.flat_parameters import FlatLayout
from trainer.hogwild import HogwildWorker
from trainer.ledger import Ledger
from trainer.pause import PauseGate
from trainer.tables import mean_pooled, pooled_shape

Placement = tuple[tuple[Piece, ...], ...]


def planned(rows: Mapping[str, int], dims: Mapping[str, int], embedding: EmbeddingConfig) -> Placement:
    """What TorchRec's planner gives two shards; every table as ``embedding.sharding`` asks."""
    tables = [TableSpec(table, count, dims[table]) for table, count in rows.items()]
    placement = plan_placement(tables, embedding, (2,), (1 << 30,))
    assert set(placement.sharding.values()) == {embedding.sharding}
    return tuple(order_pieces(placement.pieces[shard_id], list(rows), rows) for shard_id in (0, 1))


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


class TrainingRun:
    """One trainer, one thread, lookahead 0: the product's worker over the service's shards."""

    def __init__(
        self,
        service: ShardService,
        placement: Placement,
        transport: str,
        rows: Mapping[str, int],
        dims: Mapping[str, int],
        dense_features: int,
        batch: int,
        model: ModelConfig,
        embedding: EmbeddingConfig,
        dense: DenseConfig,
        wire: str = "fp32",
    ) -> None:
        self._service, self._placement, self._embedding = service, placement, embedding
        self._rows, self._dims = dict(rows), dict(dims)
        service.load(
            shard_specs(
                placement, self._rows, self._dims, embedding.optimizer, embedding.eps, embedding.weights_precision
            )
        )
        build = functools.partial(
            build_dense, model, dense_features, len(rows), seed=5, embedded_dim=sum(dims.values())
        )
        module = build()
        self._layout = FlatLayout.of(module)
        optimizer = DenseOptimizer(dense)
        self._weights = torch.empty(self._layout.numel)
        self._layout.copy_from(module, self._weights)
        self._dense_state = torch.zeros(optimizer.state_numel(self._layout.numel))
        self._replica = DenseReplica(self._layout, self._weights, self._dense_state, optimizer, build)
        self._rates = (dense.learning_rate, embedding.learning_rate)
        self._pooled = (pooled_shape(batch, list(dims.values())), POOLED_TYPE[wire])
        self._client = ShardedEmbeddingClient(
            service.next_trainer(),
            0,
            0,
            Router(list(rows), rows, dims, placement),
            service.targets(transport),
            batch=batch,
            lookahead=0,
            wire=wire,
            mean=mean_pooled(embedding, list(rows)),
            max_gradient=embedding.max_gradient,
        )

    def train(self, batches: list[Batch], before_step: Callable[[int], None] = lambda step: None) -> list[float]:
        """Train on ``batches``; ``before_step`` runs when a step's lookup is answered, before anything is updated."""
        ledger, steps = _RecordingLedger(), iter(range(len(batches)))

        def rates(started_samples: int) -> tuple[float, float]:
            before_step(next(steps))
            return self._rates

        shape, dtype = self._pooled
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
            PauseGate(1),
            lookahead=0,
            pooled_shape=shape,
            pooled_dtype=dtype,
        ).run()
        return ledger.losses

    def state(self) -> State:
        """What the shards and the trainer hold now, put together to whole tables."""
        import ray

        held = ray.get([shard.read_rows.remote() for shard in self._service.shards])
        rows = {table: torch.full((count, self._dims[table]), torch.nan) for table, count in self._rows.items()}
        for pieces, arrays in zip(self._placement, held, strict=True):
            _put(pieces, torch.from_numpy(arrays["weights"]), rows)
        momentum: dict[str, Tensor] = {}
        if self._embedding.optimizer == "exact_adagrad":
            momentum = {table: torch.full_like(whole, torch.nan) for table, whole in rows.items()}
            for pieces, arrays in zip(self._placement, held, strict=True):
                _put(pieces, torch.from_numpy(arrays["momentum1"]), momentum)
        elif self._embedding.optimizer == "exact_row_wise_adagrad":
            momentum = self._row_wise(held)
        names = [slot.name for slot in self._layout.slots]
        dense = [view.clone() for view in self._layout.views(self._weights)]
        sums = [view.clone() for view in self._layout.views(self._dense_state)] if self._dense_state.numel() else []
        return State(rows, momentum, dict(zip(names, dense, strict=True)), dict(zip(names, sums, strict=False)))

    def _row_wise(self, held: list[dict[str, object]]) -> dict[str, Tensor]:
        """One state a row and column piece, by first column."""
        starts = {
            table: sorted({piece.col_start for pieces in self._placement for piece in pieces if piece.table == table})
            for table in self._rows
        }
        momentum = {table: torch.full((count, len(starts[table])), torch.nan) for table, count in self._rows.items()}
        for pieces, arrays in zip(self._placement, held, strict=True):
            flat, start = torch.from_numpy(arrays["momentum1"]), 0  # type: ignore[arg-type]
            for piece in pieces:
                column = starts[piece.table].index(piece.col_start)
                momentum[piece.table][piece.row_start : piece.row_end, column] = flat[start : start + piece.rows]
                start += piece.rows
            assert start == flat.numel()
        return momentum


def _put(pieces: tuple[Piece, ...], flat: Tensor, tables: dict[str, Tensor]) -> None:
    start = 0
    for piece in pieces:
        target = tables[piece.table][piece.row_start : piece.row_end, piece.col_start : piece.col_end]
        target.copy_(flat[start : start + piece.numel].view_as(target))
        start += piece.numel
    assert start == flat.numel()
