from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchrec.modules.crossnet import LowRankCrossNet

from trainer.cross import LowRankCross

torch.set_num_threads(1)


def _nets(width: int, layers: int, rank: int) -> tuple[LowRankCross, LowRankCrossNet]:
    """Ours and TorchRec's with the same weights, biases included (TorchRec starts them at zero)."""
    torch.manual_seed(width + layers + rank)
    theirs = LowRankCrossNet(width, layers, rank)
    for bias in theirs.bias:
        torch.nn.init.normal_(bias, std=0.1)
    ours = LowRankCross(width, layers, rank)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return ours, theirs


def _gradients(net: torch.nn.Module, x: Tensor, upstream: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(net(x), (x, *net.parameters()), upstream))


def _bf16_gradients(net: torch.nn.Module, x: Tensor, upstream: Tensor) -> list[Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        output = net(x)
    return [output.detach(), *torch.autograd.grad(output, (x, *net.parameters()), upstream.to(output.dtype))]


@pytest.mark.parametrize(("batch", "width", "layers", "rank"), [(64, 96, 3, 16), (1, 4, 1, 1), (9, 33, 4, 5)])
def test_equals_torchrec(batch: int, width: int, layers: int, rank: int) -> None:
    ours, theirs = _nets(width, layers, rank)
    x, upstream = torch.randn(batch, width, requires_grad=True), torch.randn(batch, width)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)
    for own, other in zip(_gradients(ours, x, upstream), _gradients(theirs, x, upstream), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


def test_gradient_is_the_derivative() -> None:
    net = _nets(5, 3, 2)[0].double()
    parameters = [parameter.detach().requires_grad_() for parameter in net.parameters()]
    names = [name for name, _ in net.named_parameters()]

    def call(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(net, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(call, (torch.randn(3, 5, dtype=torch.float64, requires_grad=True), *parameters))


def test_bf16_is_as_close_to_the_truth_as_torchrec_under_autocast() -> None:
    batch, width = 256, 192
    ours, theirs = _nets(width, 3, 32)
    x = torch.randn(batch, width).bfloat16().requires_grad_()
    upstream = torch.randn(batch, width)
    exact_x = x.detach().double().requires_grad_()
    own, other = _bf16_gradients(ours, x, upstream), _bf16_gradients(theirs, x, upstream)
    exact_net = _nets(width, 3, 32)[1].double()
    exact = [exact_net(exact_x).detach(), *_gradients(exact_net, exact_x, upstream.bfloat16().double())]
    assert own[0].dtype == torch.bfloat16
    assert [tensor.dtype for tensor in own[1:]] == [x.dtype, *(p.dtype for p in ours.parameters())]
    for mine, reference, truth in zip(own, other, exact, strict=True):
        own_error, other_error = ((got.double() - truth).norm() / truth.norm() for got in (mine, reference))
        assert 0 < own_error < 1.5 * other_error


def test_the_callers_tensors_are_left_alone() -> None:
    net = _nets(12, 2, 3)[0]
    x, upstream = torch.randn(4, 12, requires_grad=True), torch.randn(4, 12)
    kept_x, kept_upstream = x.detach().clone(), upstream.clone()
    first = _gradients(net, x, upstream)
    kept = [tensor.clone() for tensor in first]
    second = _gradients(net, x, upstream)
    assert torch.equal(x, kept_x)
    assert torch.equal(upstream, kept_upstream)
    for tensor, copy, again in zip(first, kept, second, strict=True):
        assert torch.equal(tensor, copy)
        assert torch.equal(tensor, again)
