"""One fbgemm TBE over memory it does not own, used through its two CPU ops: pooled lookup and stateless update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor

from checkpoint.piece import Piece

_OPTIMIZERS = {
    "exact_sgd": EmbOptimType.EXACT_SGD,
    "exact_adagrad": EmbOptimType.EXACT_ADAGRAD,
    "exact_row_wise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}

_FLOAT32 = SparseType.FP32.as_int()


class IdRangeError(ValueError):
    """An id would have reached a row outside its piece; nothing was read or written."""


def momentum_numel(optimizer: str, pieces: Sequence[Piece]) -> int:
    """Number of float32 optimizer-state items of ``pieces``."""
    if optimizer == "exact_sgd":
        return 0
    return sum(piece.numel if optimizer == "exact_adagrad" else piece.rows for piece in pieces)


class PieceTable:
    """Pooled (sum) lookup and fused update of T pieces.

    The update is fbgemm's own backward op, called without a forward: it needs ids and gradients only, is bitwise what
    autograd through the TBE does, and keeps no state between calls (DESIGN trap 3).
    """

    def __init__(self, pieces: Sequence[Piece], optimizer: str, eps: float, arrays: Mapping[str, Tensor]) -> None:
        """Wrap ``arrays["weights"]`` (float32 or float16) and, unless SGD, ``arrays["momentum1"]`` (float32).

        Both are 1-D and of the exact size.
        """
        self.pieces = tuple(pieces)
        buffers = {"weights": arrays["weights"]}
        if optimizer != "exact_sgd":
            buffers["momentum1"] = arrays["momentum1"]
        self._tbe: Any = SplitTableBatchedEmbeddingBagsCodegen(
            embedding_specs=[(p.rows, p.dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for p in self.pieces],
            optimizer=_OPTIMIZERS[optimizer],
            learning_rate=0.0,  # given with each update
            eps=eps,
            weights_precision=SparseType.FP16 if buffers["weights"].dtype == torch.float16 else SparseType.FP32,
            output_dtype=SparseType.FP32,
            stochastic_rounding=False,  # there is none on the CPU
            pooling_mode=PoolingMode.SUM,
            bounds_check_mode=BoundsCheckMode.NONE,  # checked here in mode FATAL, so that the table can be named
            preallocated_host_buffers=buffers,
        )
        self.total_dim = sum(piece.dim for piece in self.pieces)
        self._weights = self._tbe.weights_host.detach()  # a parameter would drag an autograd graph into every answer
        self._rows = torch.tensor([piece.rows for piece in self.pieces], dtype=torch.int64)
        self._warning = torch.zeros(1, dtype=torch.int64)
        self._learning_rate = torch.zeros((), dtype=torch.float32)
        self._update = _update_op(optimizer, self._tbe, self._learning_rate, eps)

    def check(self, ids: Tensor, offsets: Tensor) -> None:
        """Raise ``IdRangeError`` unless every one of the L ids lies in its piece and offsets (T·B+1) are sound."""
        if (ids.numel() and int(ids.min()) < 0) or int(offsets[0]) != 0:  # fbgemm lets -1 pass, as a pruned row
            raise IdRangeError(self._explain(ids, offsets))
        try:
            torch.ops.fbgemm.bounds_check_indices(self._rows, ids, offsets, BoundsCheckMode.FATAL.value, self._warning)
        except RuntimeError as error:
            raise IdRangeError(self._explain(ids, offsets)) from error

    def lookup(self, ids: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Pooled rows B×ΣD (float32) of checked ids (L) and offsets (T·B+1), each row times its weight, if any (L)."""
        tbe = self._tbe
        pooled: Tensor = torch.ops.fbgemm.split_embedding_codegen_forward_cpu(
            self._weights,
            tbe.weights_offsets,
            tbe.D_offsets,
            tbe.total_D,
            tbe.hash_size_cumsum,
            ids,
            offsets,
            PoolingMode.SUM.value,
            weights,
            _FLOAT32,
        )
        return pooled

    def update(
        self, grad: Tensor, ids: Tensor, offsets: Tensor, learning_rate: float, weights: Tensor | None = None
    ) -> None:
        """Apply gradients B×ΣD (float32) of the pooled rows to the rows of checked ids, in place."""
        self._learning_rate.fill_(learning_rate)
        self._update(grad, ids, offsets, weights)

    def _explain(self, ids: Tensor, offsets: Tensor) -> str:
        pieces = len(self.pieces)
        edges = (int(offsets[0]), int(offsets[-1]))
        if (offsets.numel() - 1) % pieces or edges != (0, ids.numel()) or bool((offsets.diff() < 0).any()):
            return (
                f"{offsets.numel()} offsets from {edges[0]} to {edges[1]} do not describe {ids.numel()} ids of "
                f"{pieces} pieces"
            )
        batch = (offsets.numel() - 1) // pieces
        for index, piece in enumerate(self.pieces):
            own = ids[int(offsets[index * batch]) : int(offsets[(index + 1) * batch])]
            bad = own[(own < 0) | (own >= piece.rows)]
            if bad.numel():
                return (
                    f"table {piece.table!r}: {bad.numel()} ids outside piece {piece} of {piece.rows} rows, the first "
                    f"is {int(bad[0])} (piece-local); the encoder and the placement disagree on the table's rows"
                )
        return "fbgemm refused the ids, but all are in range"


_Update = Callable[[Tensor, Tensor, Tensor, Tensor | None], None]


def _update_op(optimizer: str, tbe: Any, learning_rate: Tensor, eps: float) -> _Update:
    placed = (tbe.weights_host, tbe.weights_placements, tbe.weights_offsets, tbe.D_offsets, tbe.max_D)
    hashed = (tbe.hash_size_cumsum, tbe.total_hash_size_bits)
    if optimizer == "exact_sgd":
        op = torch.ops.fbgemm.split_embedding_backward_codegen_sgd_cpu
        after: tuple[Any, ...] = (learning_rate,)
    else:
        momentum = (tbe.momentum1_host, tbe.momentum1_placements, tbe.momentum1_offsets)
        op = {
            "exact_adagrad": torch.ops.fbgemm.split_embedding_backward_codegen_adagrad_cpu,
            "exact_row_wise_adagrad": torch.ops.fbgemm.split_embedding_backward_codegen_rowwise_adagrad_cpu,
        }[optimizer]
        after = (*momentum, learning_rate, eps)

    def update(grad: Tensor, ids: Tensor, offsets: Tensor, weights: Tensor | None) -> None:
        stochastic_rounding = False
        op(grad, *placed, *hashed, ids, offsets, PoolingMode.SUM.value, weights, stochastic_rounding, *after)

    return update
