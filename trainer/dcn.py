"""DCNv2 without its tables (arXiv 2008.13535, as TorchRec's ``DLRM_DCN`` and the MLPerf reference)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchrec.models.dlrm import DenseArch, OverArch

from trainer.cross import LowRankCross
from trainer.linear_relu import fuse_perceptrons


class CrossInteraction(nn.Module):
    """Low-rank cross net over the dense vector and the pooled rows side by side.

    Args:
        width: D + ΣD of the pooled rows.
        num_layers: cross layers.
        low_rank: their rank.
    """

    def __init__(self, width: int, num_layers: int, low_rank: int) -> None:
        super().__init__()
        self.crossnet = LowRankCross(width, num_layers, low_rank)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """B×D dense vectors and pooled rows of any shape B×… → B×width."""
        crossed: Tensor = self.crossnet(torch.cat((dense, embedded.flatten(1).to(dense.dtype)), dim=1))
        return crossed


class DCNv2Dense(nn.Module):
    """Bottom MLP, cross net, top MLP; TorchRec's modules, so that its weights load by the same names.

    Sizes are checked by ``trainer.dlrm.build_dense``.

    Args:
        dense_features: I. With 0 the bottom MLP sees one constant zero.
        embedded_dim: ΣD, columns of all pooled rows together.
        dense_arch: layer sizes of the bottom MLP.
        over_arch: layer sizes of the top MLP, the last one is 1.
        num_layers: layers of the cross net.
        low_rank: rank of its weights.
    """

    def __init__(
        self,
        dense_features: int,
        embedded_dim: int,
        dense_arch: tuple[int, ...],
        over_arch: tuple[int, ...],
        num_layers: int,
        low_rank: int,
    ) -> None:
        super().__init__()
        width = dense_arch[-1] + embedded_dim
        self.dense_arch = DenseArch(in_features=max(1, dense_features), layer_sizes=list(dense_arch))
        self.inter_arch = CrossInteraction(width, num_layers, low_rank)
        self.over_arch = OverArch(in_features=width, layer_sizes=list(over_arch))
        fuse_perceptrons(self)
        self._has_dense = dense_features > 0

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """Predict.

        Args:
            dense: B×I.
            embedded: B×F×D pooled rows, or B×ΣD where tables differ in width.

        Returns:
            B logits.
        """
        if not self._has_dense:
            dense = dense.new_zeros(dense.shape[0], 1)
        logits: Tensor = self.over_arch(self.inter_arch(self.dense_arch(dense), embedded))
        return logits.squeeze(1)
