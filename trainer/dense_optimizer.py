"""Dense optimizers on flat buffers: one fused kernel call a step, lock-free between Hogwild threads."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.config import DenseConfig

_BETA1, _BETA2 = 0.9, 0.999
_CLIP_EPS = 1e-6
"""What PyTorch adds to the norm."""
_TAIL = 16
"""Floats after the last state vector that hold the step count: one cache line."""


class DenseOptimizer:
    """SGD, Adagrad or Adam (arXiv 1412.6980, betas 0.9 and 0.999), without weight decay.

    Values are those of ``torch.optim`` with ``fused=True``, bit for bit, when one thread steps. The object holds no
    state of its own: parameters, optimizer state and step count live in the caller's buffers, which several threads or
    processes may share. Steps are lock-free (Hogwild): concurrent ones may lose single updates, or one count of
    Adam's steps, which shifts its bias correction by one step.

    Args:
        config: kind, epsilon and clipping.
    """

    def __init__(self, config: DenseConfig) -> None:
        self.kind = config.optimizer
        self.eps = config.eps
        self.gradient_clipping = config.gradient_clipping
        # Adagrad's kernel wants a step count, but reads it only when its learning rate decays by itself: it never does.
        self._first_step = torch.ones(())

    def state_numel(self, numel: int) -> int:
        """Floats of state that ``numel`` parameters need: 0, n (Adagrad's sum) or 2n + 16 (Adam's m, v, step)."""
        if self.kind == "sgd":
            return 0
        return numel if self.kind == "adagrad" else 2 * numel + _TAIL

    def clip(self, grad: Tensor) -> None:
        """Scale ``grad`` (n float32, the whole model's) in place to ``dense.gradient_clipping``, if its norm is larger.

        As ``torch.nn.utils.clip_grad_norm_`` does over the single parameters.
        """
        if self.gradient_clipping is not None:
            factor = self.gradient_clipping / (torch.linalg.vector_norm(grad) + _CLIP_EPS)
            grad.mul_(factor.clamp_(max=1.0))

    def step(self, flat: Tensor, state: Tensor, grad: Tensor, lr: float) -> None:
        """Update ``flat`` and ``state`` in place.

        Args:
            flat: n float32 parameters, 1-D.
            state: ``state_numel(n)`` float32, 1-D, all zero before the first step.
            grad: n float32 gradients, unchanged.
            lr: learning rate of this step.

        Raises:
            ValueError: a buffer has the wrong size, which would update past its end.
        """
        numel = flat.numel()
        if grad.numel() != numel or state.numel() != self.state_numel(numel):
            raise ValueError(
                f"{self.kind} on {numel} parameters needs {numel} gradients and {self.state_numel(numel)} floats of "
                f"state, got {grad.numel()} and {state.numel()}"
            )
        if self.kind == "sgd":
            flat.add_(grad, alpha=-lr)
        elif self.kind == "adagrad":
            torch._fused_adagrad_(
                [flat],
                [grad],
                [state],
                [self._first_step],
                lr=lr,
                lr_decay=0.0,
                weight_decay=0.0,
                eps=self.eps,
                maximize=False,
            )
        else:
            count = state[2 * numel]
            count.add_(1)
            torch._fused_adam_(
                [flat],
                [grad],
                [state[:numel]],
                [state[numel : 2 * numel]],
                [],
                [count],
                lr=lr,
                beta1=_BETA1,
                beta2=_BETA2,
                weight_decay=0.0,
                eps=self.eps,
                amsgrad=False,
                maximize=False,
            )
