"""One thread's forward, backward and optimizer step on the trainer's shared dense parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from trainer.data.batch import Batch
from trainer.dense_optimizer import DenseOptimizer
from trainer.flat_parameters import FlatLayout


class DenseReplica(NamedTuple):
    """What the Hogwild threads of a trainer share: layout, parameters and optimizer state, each one flat buffer."""

    layout: FlatLayout
    weights: Tensor
    state: Tensor
    optimizer: DenseOptimizer
    build: Callable[[], nn.Module]


class StepResult(NamedTuple):
    """Outcome of a training step."""

    loss: float
    embedding_grad: Tensor | None
    """Gradient of the pooled rows; ``None`` when loss or a gradient was not finite and nothing was applied."""


class DenseStep:
    """A thread's own module over the shared parameters (own autograd version counters, DESIGN trap 4)."""

    def __init__(self, replica: DenseReplica, precision: str) -> None:
        self._replica = replica
        self._module = replica.build()
        replica.layout.bind(self._module, replica.weights)
        self._parameters = list(self._module.parameters())
        self._grad = torch.zeros(replica.layout.numel)
        self._bf16 = precision == "bf16"
        self._eval_module: nn.Module | None = None

    def train(self, batch: Batch, pooled: Tensor, learning_rate: float) -> StepResult:
        """Mean binary cross entropy over the B samples, applied lock-free to the shared parameters.

        Args:
            batch: B samples.
            pooled: B×F×D pooled rows (B×ΣD where tables differ in width); may be overwritten after the call.
            learning_rate: of the dense optimizer.
        """
        leaf = pooled.detach().requires_grad_(True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self._bf16):
            logits = self._module(batch.dense, leaf)
        loss_tensor = binary_cross_entropy_with_logits(logits.float(), batch.labels)
        loss = float(loss_tensor.detach())
        if not math.isfinite(loss):
            return StepResult(loss, None)
        *grads, embedding_grad = torch.autograd.grad(loss_tensor, [*self._parameters, leaf])
        self._replica.layout.gather_grads(grads, self._grad)
        # Summed in two steps: in one, PyTorch copies a BF16 gradient to float32 first.
        if not math.isfinite(float(self._grad.sum()) + float(embedding_grad.sum(0).sum())):
            return StepResult(loss, None)
        self._replica.optimizer.clip(self._grad)
        self._replica.optimizer.step(self._replica.weights, self._replica.state, self._grad, learning_rate)
        return StepResult(loss, embedding_grad)

    @torch.no_grad()
    def predict(self, batch: Batch, pooled: Tensor, weights: Tensor) -> Tensor:
        """B logits (float32) with ``weights`` (flat), which need not be the ones in training."""
        if self._eval_module is None:
            self._eval_module = self._replica.build()
        self._replica.layout.bind(self._eval_module, weights)
        with torch.autocast("cpu", torch.bfloat16, enabled=self._bf16):
            logits: Tensor = self._eval_module(batch.dense, pooled)
        return logits.float()
