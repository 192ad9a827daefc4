"""The fused layer against ``nn.Linear`` and ``relu`` of PyTorch, and TorchRec's modules with it inside."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torchrec.models.dlrm import DenseArch, OverArch

from trainer.linear_relu import LinearRelu, fuse_perceptrons

torch.set_num_threads(1)


def _case(rows: int, inputs: int, outputs: int) -> tuple[torch.nn.Linear, torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows * 1000 + inputs)
    return torch.nn.Linear(inputs, outputs), torch.randn(rows, inputs), torch.randn(rows, outputs)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(64, 13, 512), (1, 1, 1), (200, 367, 256), (0, 5, 3)])
def test_values_and_gradients_are_those_of_linear_and_relu(rows: int, inputs: int, outputs: int) -> None:
    linear, x, upstream = _case(rows, inputs, outputs)
    double = torch.nn.Linear(inputs, outputs).double()
    double.load_state_dict({name: value.double() for name, value in linear.state_dict().items()})
    ours_in, exact_in = x.clone().requires_grad_(), x.double().requires_grad_()
    ours, exact = LinearRelu(linear)(ours_in), torch.relu(double(exact_in))
    grads = torch.autograd.grad(ours, [ours_in, *linear.parameters()], upstream)
    exact_grads = torch.autograd.grad(exact, [exact_in, *double.parameters()], upstream.double())
    for own, reference in zip((ours, *grads), (exact, *exact_grads), strict=True):
        assert own.dtype == torch.float32
        torch.testing.assert_close(own.double(), reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 200])
def test_under_autocast_it_is_bfloat16_within_and_float32_for_the_parameters(rows: int) -> None:
    linear, x, upstream = _case(rows, 64, 128)
    ours_in, theirs_in = x.clone().requires_grad_(), x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = LinearRelu(linear)(ours_in), torch.relu(linear(theirs_in))
    assert ours.dtype == theirs.dtype == torch.bfloat16
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
    half = upstream.bfloat16()
    ours_grads = torch.autograd.grad(ours, [ours_in, *linear.parameters()], half)
    theirs_grads = torch.autograd.grad(theirs, [theirs_in, *linear.parameters()], half)
    for own, reference in zip(ours_grads, theirs_grads, strict=True):
        assert own.dtype == reference.dtype == torch.float32
        assert (own - reference).norm() <= 8e-3 * reference.norm()  # bfloat16 keeps 8 bits


def test_other_types_take_the_plain_modules() -> None:
    linear, x, _ = _case(5, 6, 7)
    assert torch.autograd.gradcheck(LinearRelu(linear.double()), (x.double().requires_grad_(),))


@pytest.mark.parametrize("bf16", [False, True])
def test_nan_passes(bf16: bool) -> None:
    linear, x, _ = _case(8, 4, 4)
    x[3, 2] = torch.nan
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        assert LinearRelu(linear)(x).isnan().any(1).tolist() == [row == 3 for row in range(8)]


def test_a_processor_without_bfloat16_in_onednn_takes_the_plain_modules() -> None:
    code = (
        "import torch\n"
        "from trainer.linear_relu import LinearRelu\n"
        "with torch.autocast('cpu', torch.bfloat16):\n"
        "    y = LinearRelu(torch.nn.Linear(8, 4))(torch.randn(5, 8))\n"
        "assert y.dtype == torch.bfloat16 and y.shape == (5, 4)\n"
    )
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=100)


def test_no_gradient_for_an_input_that_needs_none() -> None:
    linear, x, upstream = _case(8, 4, 4)
    weight_grad, bias_grad = torch.autograd.grad(LinearRelu(linear)(x), list(linear.parameters()), upstream)
    assert weight_grad.shape == (4, 4) and bias_grad.shape == (4,)


@pytest.mark.parametrize("module", [DenseArch(13, [32, 16]), OverArch(40, [32, 16, 1])])
def test_torchrec_modules_keep_their_names_parameters_and_values(module: torch.nn.Module) -> None:
    names = [name for name, _ in module.named_parameters()]
    parameters = list(module.parameters())
    x = torch.randn(9, 13 if isinstance(module, DenseArch) else 40)
    before = module(x)
    fuse_perceptrons(module)
    assert [name for name, _ in module.named_parameters()] == names
    assert all(own is other for own, other in zip(module.parameters(), parameters, strict=True))
    assert sum(isinstance(child, LinearRelu) for child in module.modules()) == 2
    torch.testing.assert_close(module(x), before)
