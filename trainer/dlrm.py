"""DLRM without its tables: what a trainer replicates (arXiv 1906.00091)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchrec.models.dlrm import DenseArch, OverArch

from trainer.config import ModelConfig
from trainer.dcn import DCNv2Dense
from trainer.interaction import DotInteraction
from trainer.linear_relu import fuse_perceptrons


class DLRMDense(nn.Module):
    """Bottom MLP, dot interaction, top MLP; TorchRec's modules, so that its weights load by the same names.

    Args:
        dense_features: I. With 0 the bottom MLP sees one constant zero, so its biases still give a vector.
        sparse_features: F.
        dense_arch: layer sizes of the bottom MLP, the last one is D.
        over_arch: layer sizes of the top MLP, at least two, the last one is 1.

    Raises:
        ValueError: the sizes make no model; says which setting to change.
    """

    def __init__(
        self, dense_features: int, sparse_features: int, dense_arch: tuple[int, ...], over_arch: tuple[int, ...]
    ) -> None:
        super().__init__()
        _check_sizes(dense_features, sparse_features, dense_arch, over_arch)
        dim = dense_arch[-1]
        self.dense_arch = DenseArch(in_features=max(1, dense_features), layer_sizes=list(dense_arch))
        self.inter_arch = DotInteraction(sparse_features)
        pairs = sparse_features + sparse_features * (sparse_features - 1) // 2
        self.over_arch = OverArch(in_features=dim + pairs, layer_sizes=list(over_arch))
        fuse_perceptrons(self)
        self._has_dense = dense_features > 0

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """Predict.

        Args:
            dense: B×I.
            embedded: B×F×D pooled embedding rows.

        Returns:
            B logits.
        """
        if not self._has_dense:
            dense = dense.new_zeros(dense.shape[0], 1)
        logits: Tensor = self.over_arch(self.inter_arch(self.dense_arch(dense), embedded))
        return logits.squeeze(1)


def build_dense(
    model: ModelConfig, dense_features: int, sparse_features: int, seed: int, embedded_dim: int | None = None
) -> DLRMDense | DCNv2Dense:
    """Build the dense part with weights that depend on ``seed`` and the shapes only.

    The process's own random state is neither read nor changed.

    Args:
        model: architecture and layer sizes.
        dense_features: I.
        sparse_features: F.
        seed: the run's seed.
        embedded_dim: ΣD of the pooled rows; ``None`` when all have width D, as DLRM needs.

    Raises:
        ValueError: the sizes make no model; says which setting to change.
    """
    uniform = sparse_features * model.embedding_dim
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if model.arch == "dcnv2":
            _check_sizes(dense_features, sparse_features, model.dense_arch, model.over_arch)
            return DCNv2Dense(
                dense_features,
                uniform if embedded_dim is None else embedded_dim,
                model.dense_arch,
                model.over_arch,
                model.dcn_num_layers,
                model.dcn_low_rank_dim,
            )
        if embedded_dim not in (None, uniform):
            raise ValueError(
                f"model.arch=dlrm needs every embedding.tables.<name>.dim equal to model.embedding_dim "
                f"({model.embedding_dim}), got {embedded_dim} columns in {sparse_features} tables; use model.arch=dcnv2"
            )
        return DLRMDense(dense_features, sparse_features, model.dense_arch, model.over_arch)


def _check_sizes(
    dense_features: int, sparse_features: int, dense_arch: tuple[int, ...], over_arch: tuple[int, ...]
) -> None:
    if dense_features < 0 or sparse_features < 0 or dense_features + sparse_features == 0:
        raise ValueError(
            f"the data has {dense_features} dense and {sparse_features} categorical features: at least one is needed, "
            "check data.format and data.train"
        )
    if not dense_arch:
        raise ValueError("model.dense_arch needs at least one layer, got none")
    if len(over_arch) < 2 or over_arch[-1] != 1:
        raise ValueError(
            f"model.over_arch needs a hidden layer and must end in 1 (the logit), for example [256, 1]; "
            f"got {list(over_arch)}"
        )
