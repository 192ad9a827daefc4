"""The same model in one process: TorchRec over a fused EmbeddingBagCollection, torch.optim for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec.models.dlrm import DLRM, DLRM_DCN, DenseArch, OverArch
from torchrec.modules.crossnet import LowRankCrossNet
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from trainer.config import DenseConfig, EmbeddingConfig, ModelConfig
from trainer.data.batch import Batch

_FUSED = {
    "exact_sgd": torch.optim.SGD,
    "exact_adagrad": torch.optim.Adagrad,
    "exact_row_wise_adagrad": RowWiseAdagrad,
}


@dataclass
class State:
    """Everything that training changes."""

    rows: dict[str, Tensor]
    """Table → rows×D."""
    momentum: dict[str, Tensor]
    """Table → rows×D, or rows×(number of column pieces) under row-wise Adagrad; empty under SGD."""
    dense: dict[str, Tensor]
    """Parameter name → value."""
    dense_sum: dict[str, Tensor]
    """Parameter name → Adagrad's sum; empty under SGD."""

    def distance(self, other: State) -> float:
        """Largest difference of any row, optimizer state or dense value."""
        largest = 0.0
        for part in ("rows", "momentum", "dense", "dense_sum"):
            mine, theirs = getattr(self, part), getattr(other, part)
            assert mine.keys() == theirs.keys()
            for name, tensor in mine.items():
                largest = max(largest, float((tensor - theirs[name].view_as(tensor)).abs().max()))
        return largest


class TorchRecReference:
    """One process, whole tables, autograd through everything. Rates are those of ``dense`` and ``embedding``.

    ``column_pieces``: split every table by columns into that many tables, as an equally split reference.
    """

    def __init__(
        self,
        rows: Mapping[str, int],
        dims: Mapping[str, int],
        dense_features: int,
        model: ModelConfig,
        embedding: EmbeddingConfig,
        dense: DenseConfig,
        *,
        weighted: bool = False,
        column_pieces: int = 1,
    ) -> None:
        self._tables, self._dims, self._weighted = list(rows), dims, weighted
        self._names = {table: [f"{table}_c{piece}" for piece in range(column_pieces)] for table in rows}
        self._column_pieces = column_pieces
        options = {"lr": embedding.learning_rate, "eps": embedding.eps}
        if embedding.max_gradient is not None:
            options |= {"gradient_clipping": True, "max_gradient": embedding.max_gradient}
        self._collection = FusedEmbeddingBagCollection(
            [
                EmbeddingBagConfig(
                    name=name,
                    embedding_dim=dims[table] // column_pieces,
                    num_embeddings=count,
                    feature_names=[table],
                    pooling=_pooling(embedding, table),
                    data_type=DataType.FP16 if embedding.weights_precision == "fp16" else DataType.FP32,
                )
                for table, count in rows.items()
                for name in self._names[table]
            ],
            optimizer_type=_FUSED[embedding.optimizer],
            optimizer_kwargs=options,
            is_weighted=weighted,
        )
        whole = _WholeTables(self._collection, rows, dims)
        arches = (list(model.dense_arch), list(model.over_arch))
        cross = {"dcn_num_layers": model.dcn_num_layers, "dcn_low_rank_dim": model.dcn_low_rank_dim}
        self._model: nn.Module
        if len(set(dims.values())) > 1:
            self._model = _MixedDCN(whole, dense_features, model, sum(dims.values()))
        elif model.arch == "dcnv2":
            self._model = DLRM_DCN(whole, dense_features, *arches, **cross)
        else:
            self._model = DLRM(whole, dense_features, *arches)
        self._dense = {
            name: parameter for name, parameter in self._model.named_parameters() if not name.startswith("sparse_arch.")
        }
        self._clipping = dense.gradient_clipping
        self._optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(self._dense.values(), lr=dense.learning_rate)
            if dense.optimizer == "sgd"
            else torch.optim.Adagrad(self._dense.values(), lr=dense.learning_rate, eps=dense.eps)
        )

    def load(self, state: State) -> None:
        """Start from ``state``."""
        for mine, theirs in ((self._rows(), state.rows), (self._momentum(), state.momentum)):
            assert mine.keys() == theirs.keys()
            for table, parts in mine.items():
                for part, value in zip(parts, theirs[table].chunk(self._column_pieces, 1), strict=True):
                    part.data.copy_(value.view_as(part))
        for name, value in state.dense.items():
            self._dense[name].data.copy_(value)
        for name, total in state.dense_sum.items():
            self._optimizer.state[self._dense[name]]["sum"].copy_(total)

    def state(self) -> State:
        """A copy of the present state."""
        sums = {name: self._optimizer.state[parameter].get("sum") for name, parameter in self._dense.items()}
        return State(
            rows={table: torch.cat(parts, 1) for table, parts in self._rows().items()},
            momentum={
                table: torch.cat([part.view(part.shape[0], -1) for part in parts], 1)
                for table, parts in self._momentum().items()
            },
            dense={name: parameter.detach().clone() for name, parameter in self._dense.items()},
            dense_sum={name: total.clone() for name, total in sums.items() if total is not None},
        )

    def step(self, batch: Batch) -> float:
        """Forward, backward (which updates the tables), dense step; returns the loss."""
        lengths = torch.ones_like(batch.values) if batch.lengths is None else batch.lengths
        features = KeyedJaggedTensor(keys=self._tables, values=batch.values, lengths=lengths, weights=batch.weights)
        self._optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(self._model(batch.dense, features).squeeze(1), batch.labels)
        loss.backward()
        if self._clipping is not None:
            nn.utils.clip_grad_norm_(self._dense.values(), self._clipping)
        self._optimizer.step()
        return float(loss.detach())

    def _rows(self) -> dict[str, list[Tensor]]:
        state = self._collection.state_dict()
        return {
            table: [state[f"embedding_bags.{name}.weight"] for name in self._names[table]] for table in self._tables
        }

    def _momentum(self) -> dict[str, list[Tensor]]:
        states = self._collection.fused_optimizer().state_dict()["state"]
        found = {
            table: [states.get(f"{name}.weight", {}).get(f"{name}.weight.momentum_1") for name in self._names[table]]
            for table in self._tables
        }
        return {table: parts for table, parts in found.items() if parts[0] is not None}


class _WholeTables(nn.Module):
    """Shows TorchRec's models one key a table, also where it is split by columns."""

    def __init__(
        self, collection: FusedEmbeddingBagCollection, rows: Mapping[str, int], dims: Mapping[str, int]
    ) -> None:
        super().__init__()
        self._collection = collection
        self._configs = [
            EmbeddingBagConfig(name=table, embedding_dim=dims[table], num_embeddings=count, feature_names=[table])
            for table, count in rows.items()
        ]

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        return self._configs

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        return KeyedTensor(
            keys=[config.name for config in self._configs],
            length_per_key=[config.embedding_dim for config in self._configs],
            values=self._collection(features).values(),
        )


class _MixedDCN(nn.Module):
    """DLRM_DCN for tables of different widths, which TorchRec's own class refuses; made of its modules."""

    def __init__(self, tables: _WholeTables, dense_features: int, model: ModelConfig, embedded: int) -> None:
        super().__init__()
        width = model.dense_arch[-1] + embedded
        self.sparse_arch = tables
        self.dense_arch = DenseArch(dense_features, list(model.dense_arch))
        self.inter_arch = nn.ModuleDict(
            {"crossnet": LowRankCrossNet(width, model.dcn_num_layers, model.dcn_low_rank_dim)}
        )
        self.over_arch = OverArch(width, list(model.over_arch))

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        together = torch.cat((self.dense_arch(dense), self.sparse_arch(features).values()), 1)
        logits: Tensor = self.over_arch(self.inter_arch["crossnet"](together))
        return logits


def _pooling(embedding: EmbeddingConfig, table: str) -> PoolingType:
    own = embedding.tables[table].pooling if table in embedding.tables else None
    return PoolingType.MEAN if (own or embedding.pooling) == "mean" else PoolingType.SUM
