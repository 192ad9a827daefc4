"""The same model in a single process: TorchRec's DLRM over a fused EmbeddingBagCollection, torch.optim for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec.models.dlrm import DLRM
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

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
    """Table → rows×D or rows; empty under SGD."""
    dense: dict[str, Tensor]
    """Parameter name → value."""
    dense_sum: dict[str, Tensor]
    """Parameter name → Adagrad's sum; empty under SGD."""


class TorchRecReference:
    """One process, whole tables, autograd through everything."""

    def __init__(
        self,
        rows: Mapping[str, int],
        dim: int,
        dense_features: int,
        dense_arch: tuple[int, ...],
        over_arch: tuple[int, ...],
        *,
        optimizer: str,
        eps: float,
        embedding_rate: float,
        dense_rate: float,
        dense_eps: float,
    ) -> None:
        """``optimizer`` is that of the tables; dense parameters get SGD beside ``exact_sgd``, Adagrad otherwise."""
        self._tables = list(rows)
        self._collection = FusedEmbeddingBagCollection(
            [
                EmbeddingBagConfig(name=table, embedding_dim=dim, num_embeddings=count, feature_names=[table])
                for table, count in rows.items()
            ],
            optimizer_type=_FUSED[optimizer],
            optimizer_kwargs={"lr": embedding_rate, "eps": eps},
        )
        self._model = DLRM(self._collection, dense_features, list(dense_arch), list(over_arch))
        self._dense = {
            name: parameter for name, parameter in self._model.named_parameters() if not name.startswith("sparse_arch.")
        }
        self._optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(self._dense.values(), lr=dense_rate)
            if optimizer == "exact_sgd"
            else torch.optim.Adagrad(self._dense.values(), lr=dense_rate, eps=dense_eps)
        )

    def load(self, state: State) -> None:
        """Start from ``state``."""
        for mine, theirs in (
            (self._rows(), state.rows),
            (self._momentum(), state.momentum),
            (self._dense, state.dense),
        ):
            assert mine.keys() == theirs.keys()
            for name, tensor in mine.items():
                tensor.data.copy_(theirs[name].view_as(tensor))
        for name, total in state.dense_sum.items():
            self._optimizer.state[self._dense[name]]["sum"].copy_(total)

    def state(self) -> State:
        """A copy of the present state."""
        sums = {name: self._optimizer.state[parameter].get("sum") for name, parameter in self._dense.items()}
        return State(
            rows={name: tensor.clone() for name, tensor in self._rows().items()},
            momentum={name: tensor.clone() for name, tensor in self._momentum().items()},
            dense={name: parameter.detach().clone() for name, parameter in self._dense.items()},
            dense_sum={name: total.clone() for name, total in sums.items() if total is not None},
        )

    def step(self, batch: Batch) -> float:
        """Forward, backward (which updates the tables), dense step; returns the loss."""
        lengths = torch.ones_like(batch.values) if batch.lengths is None else batch.lengths
        features = KeyedJaggedTensor(keys=self._tables, values=batch.values, lengths=lengths)
        self._optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(self._model(batch.dense, features).squeeze(1), batch.labels)
        loss.backward()
        self._optimizer.step()
        return float(loss.detach())

    def _rows(self) -> dict[str, Tensor]:
        state = self._collection.state_dict()
        return {table: state[f"embedding_bags.{table}.weight"] for table in self._tables}

    def _momentum(self) -> dict[str, Tensor]:
        states = self._collection.fused_optimizer().state_dict()["state"]
        return {
            table: own[f"{table}.weight.momentum_1"]
            for table, own in ((table, states.get(f"{table}.weight", {})) for table in self._tables)
            if own
        }
