from __future__ import annotations

import pytest
import torch
from torchrec.models.dlrm import InteractionArch

from trainer.interaction import DotInteraction

torch.set_num_threads(1)


def _inputs(batch: int, features: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(features * 1000 + batch)
    dense = torch.randn(batch, dim, generator=generator, requires_grad=True)
    embedded = torch.randn(batch, features, dim, generator=generator, requires_grad=True)
    return dense, embedded


@pytest.mark.parametrize(("batch", "features", "dim"), [(64, 26, 16), (1, 1, 4), (3, 2, 8), (0, 5, 4), (7, 40, 12)])
def test_same_values_order_and_gradients_as_torchrec(batch: int, features: int, dim: int) -> None:
    dense, embedded = _inputs(batch, features, dim)
    ours, theirs = DotInteraction(features)(dense, embedded), InteractionArch(features)(dense, embedded)
    assert torch.equal(ours, theirs)
    assert ours.shape == (batch, dim + features + features * (features - 1) // 2)

    upstream = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
    ours_grads = torch.autograd.grad(ours, (dense, embedded), upstream)
    theirs_grads = torch.autograd.grad(theirs, (dense, embedded), upstream)
    for our_grad, their_grad in zip(ours_grads, theirs_grads, strict=True):
        torch.testing.assert_close(our_grad, their_grad, rtol=2e-6, atol=1e-5)


def test_gradient_is_the_derivative() -> None:
    dense, embedded = (tensor.detach().double().requires_grad_() for tensor in _inputs(3, 4, 4))
    assert torch.autograd.gradcheck(DotInteraction(4), (dense, embedded))


def test_bf16_rows_of_float32_are_cast_once_and_match_torchrec_under_autocast() -> None:
    dense, embedded = _inputs(32, 26, 16)
    half = dense.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = DotInteraction(26)(half, embedded)
        theirs = InteractionArch(26)(half, embedded.bfloat16())
    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, theirs)

    upstream = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    half_grad, embedded_grad = torch.autograd.grad(ours, (half, embedded), upstream)
    assert (half_grad.dtype, embedded_grad.dtype) == (torch.bfloat16, torch.float32)
    exact_inputs = half.detach().float().requires_grad_(), embedded.detach().bfloat16().float().requires_grad_()
    exact = torch.autograd.grad(InteractionArch(26)(*exact_inputs), exact_inputs, upstream.float())
    for grad, reference in zip((half_grad, embedded_grad), exact, strict=True):
        assert (grad.float() - reference).norm() / reference.norm() < 4e-3  # bfloat16 keeps 8 bits


def test_without_sparse_features_the_dense_vector_passes() -> None:
    dense = torch.ones(2, 4)
    assert DotInteraction(0)(dense, torch.empty(2, 0, 4)) is dense
