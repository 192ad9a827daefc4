"""Low-rank cross net of DCNv2 (arXiv 2008.13535) in two matrix products and one element-wise op a layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torchrec.modules.crossnet import LowRankCrossNet


class LowRankCross(LowRankCrossNet):  # type: ignore[misc]
    """x_{l+1} = x_0 ∘ (W_l V_l x_l + b_l) + x_l for every layer l: TorchRec's ``LowRankCrossNet``, parameters included.

    Under autocast TorchRec's bias promotes every B×N tensor behind it to float32: six of them a layer, forward and
    backward, cost more than the matrix products. Here all is of one type, autocast's where it is on, as the matrix
    products would round their inputs to it anyway; sums inside an op are float32.
    """

    def forward(self, input: Tensor) -> Tensor:
        """B×N → B×N."""
        device = input.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else input.dtype
        parameters = [p.to(dtype) for p in (*self.W_kernels, *self.V_kernels, *self.bias)]
        output: Tensor = _Cross.apply(input.to(dtype), *parameters)  # type: ignore[no-untyped-call]
        return output


class _Cross(torch.autograd.Function):
    """Input, parameters (all W, all V, all b) and output of one type."""

    @staticmethod
    def forward(ctx: Any, x_0: Tensor, *parameters: Tensor) -> Tensor:
        layers = len(parameters) // 3
        saved = []
        x_l = x_0
        with torch.autocast(x_0.device.type, enabled=False):
            for layer in range(layers):
                w, v, bias = parameters[layer::layers]
                narrow = torch.mm(x_l, v.t())
                wide = torch.addmm(bias, narrow, w.t())
                saved += [x_l, narrow, wide]
                x_l = torch.addcmul(x_l, x_0, wide)
        ctx.save_for_backward(x_0, *parameters, *saved)
        return x_l

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x_0, *rest = ctx.saved_tensors
        layers = len(rest) // 6
        parameters, saved = rest[: 3 * layers], rest[3 * layers :]
        grads: list[Tensor] = [grad] * (3 * layers)
        x_0_grad, wide_grad = torch.zeros_like(x_0), torch.empty_like(x_0)
        with torch.autocast(grad.device.type, enabled=False):
            for layer in reversed(range(layers)):
                w, v, _ = parameters[layer::layers]
                x_l, narrow, wide = saved[3 * layer : 3 * layer + 3]
                torch.mul(grad, x_0, out=wide_grad)
                x_0_grad.addcmul_(grad, wide)
                narrow_grad = torch.mm(wide_grad, w)
                grads[layer::layers] = [wide_grad.t() @ narrow, narrow_grad.t() @ x_l, wide_grad.sum(0)]
                # The first gradient is the caller's; later ones are this function's own.
                grad = torch.addmm(grad, narrow_grad, v) if layer == layers - 1 else grad.addmm_(narrow_grad, v)
        return x_0_grad.add_(grad), *grads
