"""Linear layer and ReLU as one step, on oneDNN in single precision too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from torchrec.modules.mlp import Perceptron


class LinearRelu(nn.Module):
    """max(0, x·Wᵀ + b), with the parameter names of TorchRec's ``Perceptron``.

    On a CPU, float32 and bfloat16 run on oneDNN. PyTorch sends float32 to MKL, which leaves AVX-512 unused on
    processors of other makers: less than half the speed there. Elsewhere the plain modules do the same.
    Sums are in another order than in ``nn.Linear``: equal within some 1e-6 relative in float32.

    Args:
        linear: O×I weights and O biases; shared, not copied.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._linear = linear

    def forward(self, x: Tensor) -> Tensor:
        """B×I → B×O, in autocast's type where it is on."""
        weight, bias = self._linear.weight, self._linear.bias
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        if x.device.type != "cpu" or x.dtype not in _FUSED_TYPES or not x.numel():
            return torch.relu(linear(x, weight, bias))
        output: Tensor = _LinearRelu.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return output


def fuse_perceptrons(module: nn.Module) -> None:
    """Replace every ReLU ``Perceptron`` within ``module``, keeping its parameters and their names."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Perceptron) and child._activation_fn is torch.relu:
                setattr(parent, name, LinearRelu(child._linear))


class _LinearRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        weight, bias = weight.to(x.dtype), bias.to(x.dtype)
        y = _product(x, weight, bias).relu_()  # oneDNN could do both at once, but its ReLU turns NaN into 0
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight, y = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grad, y, 0)
        x_grad = _product(grad, weight.t()) if ctx.needs_input_grad[0] else None
        # In bfloat16 mm reaches the same kernel without copying the transposed operands.
        weight_grad = _product(grad.t(), x.t()) if x.dtype == torch.float32 else torch.mm(grad.t(), x)
        return x_grad, weight_grad, grad.sum(0)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x·weightᵀ + bias`` by oneDNN."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def _works(dtype: torch.dtype) -> bool:
    """Whether this build and processor have the product; oneDNN has none for bfloat16 below AVX-512."""
    try:
        _product(torch.ones(2, 2, dtype=dtype), torch.ones(2, 2, dtype=dtype))
    except (AttributeError, RuntimeError):
        return False
    return True


_FUSED_TYPES = tuple(dtype for dtype in (torch.float32, torch.bfloat16) if _works(dtype))
