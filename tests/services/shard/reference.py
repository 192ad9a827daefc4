"""A shard's arithmetic by fbgemm's own autograd module, and the pushes that tests send."""

from __future__ import annotations

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor

from checkpoint.piece import Piece
from services.shard.memory import ShardSpec

OPTIMIZERS = ("exact_sgd", "exact_adagrad", "exact_row_wise_adagrad")
RATE = 0.05
_TABLE_ROWS = {"sex": 3, "site": 90, "user": 400}
PIECES = (Piece("site", 0, 90, 0, 8), Piece("sex", 0, 3, 0, 8), Piece("user", 150, 400, 0, 8))
BATCH = 16
DIFFERENT_PUSHES = 500
"""Push number n > 500 is push n - 500 again."""


def shard_spec(optimizer: str, pieces: tuple[Piece, ...] = PIECES) -> ShardSpec:
    return ShardSpec(
        run="test",
        shard_id=0,
        pieces=pieces,
        table_rows=_TABLE_ROWS,
        table_dims=dict.fromkeys(_TABLE_ROWS, 8),
        optimizer=optimizer,
        eps=1e-8,
        seed=11,
        streams=4,
    )


def random_push(number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Push ``number``, always the same: gradient B×ΣD, ids L, offsets T·B+1; bags of 0 to 3 ids, rows that repeat."""
    generator = torch.Generator().manual_seed((number - 1) % DIFFERENT_PUSHES)
    lengths = torch.randint(0, 4, (len(PIECES), BATCH), generator=generator)
    ids = [
        torch.randint(0, piece.rows, (int(count),), generator=generator)
        for piece, count in zip(PIECES, lengths.sum(1), strict=True)
    ]
    offsets = torch.zeros(lengths.numel() + 1, dtype=torch.int64)
    torch.cumsum(lengths.view(-1), 0, out=offsets[1:])
    grad = torch.randn(BATCH, sum(piece.dim for piece in PIECES), generator=generator)
    return grad, torch.cat(ids), offsets


class Reference:
    """fbgemm's TBE as everybody uses it: memory of its own, forward, autograd backward with the fused optimizer."""

    def __init__(self, optimizer: str, initial: Tensor) -> None:
        kind = {
            "exact_sgd": EmbOptimType.EXACT_SGD,
            "exact_adagrad": EmbOptimType.EXACT_ADAGRAD,
            "exact_row_wise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        }[optimizer]
        self._tbe = SplitTableBatchedEmbeddingBagsCodegen(
            [(piece.rows, piece.dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for piece in PIECES],
            optimizer=kind,
            learning_rate=RATE,
            eps=1e-8,
            pooling_mode=PoolingMode.SUM,
        )
        start = 0
        for weight in self._tbe.split_embedding_weights():
            weight.copy_(initial[start : start + weight.numel()].view_as(weight))
            start += weight.numel()

    def lookup(self, ids: Tensor, offsets: Tensor) -> Tensor:
        pooled: Tensor = self._tbe(ids, offsets)
        return pooled

    def push(self, grad: Tensor, ids: Tensor, offsets: Tensor) -> None:
        self.lookup(ids, offsets).backward(grad)

    @property
    def weights(self) -> Tensor:
        return torch.cat([weight.detach().reshape(-1) for weight in self._tbe.split_embedding_weights()])

    @property
    def momentum(self) -> Tensor | None:
        states = self._tbe.split_optimizer_states()
        if not states or not states[0]:
            return None
        return torch.cat([state[0].reshape(-1) for state in states])


def replay(optimizer: str, initial: Tensor, pushes: int) -> Reference:
    """Pushes 1 … ``pushes`` applied one after the other."""
    reference = Reference(optimizer, initial)
    different = [random_push(number) for number in range(1, min(pushes, DIFFERENT_PUSHES) + 1)]
    for number in range(pushes):
        reference.push(*different[number % DIFFERENT_PUSHES])
    return reference
