from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch

from trainer.config import DenseConfig
from trainer.dense_optimizer import DenseOptimizer

torch.set_num_threads(1)

Kind = Literal["sgd", "adagrad", "adam"]
_EPS = 1e-8
_TORCH: dict[Kind, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda params, **options: torch.optim.SGD(params, lr=1.0, **options),
    "adagrad": lambda params, **options: torch.optim.Adagrad(params, lr=1.0, eps=_EPS, **options),
    "adam": lambda params, **options: torch.optim.Adam(params, lr=1.0, eps=_EPS, **options),
}


def _run(kind: Kind, steps: int, reference: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Parameters after ``steps`` steps with a falling learning rate: ours, and torch.optim's."""
    generator = torch.Generator().manual_seed(5)
    flat = torch.randn(1008, generator=generator)
    parameter = torch.nn.Parameter(flat.clone())
    optimizer = DenseOptimizer(DenseConfig(optimizer=kind, eps=_EPS))
    state = torch.zeros(optimizer.state_numel(flat.numel()))
    theirs = _TORCH[kind]([parameter], **reference)
    for step in range(steps):
        lr = 0.05 * (1 - step / steps)
        grad = torch.randn(1008, generator=generator) * 10 ** (step % 5 - 3)
        grad[1000:] = 0  # padding
        kept = grad.clone()
        optimizer.step(flat, state, grad, lr)
        assert torch.equal(grad, kept)
        theirs.param_groups[0]["lr"] = lr
        parameter.grad = grad
        theirs.step()
    return flat, parameter.detach()


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam"])
def test_a_hundred_steps_equal_torch_optim(kind: Kind) -> None:
    ours, fused = _run(kind, 100, {"fused": True})
    assert torch.equal(ours, fused)
    ours, plain = _run(kind, 100, {"foreach": False})
    torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam"])
def test_padding_stays_zero_and_state_carries_everything(kind: Kind) -> None:
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(32, generator=generator) for _ in range(6)]
    for grad in grads:
        grad[20:] = 0
    config = DenseConfig(optimizer=kind)
    size = DenseOptimizer(config).state_numel(32)
    flat, state = torch.zeros(32), torch.zeros(size)
    other_flat, other_state = torch.zeros(32), torch.zeros(size)
    one = DenseOptimizer(config)
    for grad in grads:
        one.step(flat, state, grad, 0.1)
        DenseOptimizer(config).step(other_flat, other_state, grad, 0.1)  # as an adopter would: a new object each time
    assert torch.equal(flat, other_flat) and torch.equal(state, other_state)
    assert (flat[20:] == 0).all()
    assert (flat[:20] != 0).all()


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam"])
def test_threads_on_one_buffer_find_the_minimum(kind: Kind) -> None:
    target = torch.linspace(-1, 1, 64)
    config = DenseConfig(optimizer=kind)
    flat = torch.zeros(64)
    state = torch.zeros(DenseOptimizer(config).state_numel(64))
    lr = {"sgd": 0.1, "adagrad": 0.2, "adam": 0.02}[kind]

    def work() -> None:
        optimizer, grad = DenseOptimizer(config), torch.empty(64)
        for step in range(400):
            torch.sub(flat, target, out=grad)
            optimizer.step(flat, state, grad, lr * (1 - step / 400))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(flat, target, rtol=0, atol=2e-2)
    if kind == "adam":
        assert 400 <= float(state[128]) <= 1200


def test_wrong_sizes_are_refused() -> None:
    optimizer = DenseOptimizer(DenseConfig(optimizer="adam"))
    with pytest.raises(
        ValueError, match="adam on 32 parameters needs 32 gradients and 80 floats of state, got 32 and 64"
    ):
        optimizer.step(torch.zeros(32), torch.zeros(64), torch.zeros(32), 0.1)
    with pytest.raises(ValueError, match="got 31 and 80"):
        optimizer.step(torch.zeros(32), torch.zeros(80), torch.zeros(31), 0.1)


@pytest.mark.parametrize("limit", [0.5, 1e3])
def test_clipping_is_torchs_over_all_parameters(limit: float) -> None:
    generator = torch.Generator().manual_seed(2)
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((7, 5), (16,), (3, 2, 4))]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    flat = torch.cat([torch.cat([p.grad.flatten(), torch.zeros(3)]) for p in parameters if p.grad is not None])
    before = flat.clone()
    DenseOptimizer(DenseConfig(gradient_clipping=limit)).clip(flat)
    torch.nn.utils.clip_grad_norm_(parameters, limit)
    theirs = torch.cat([torch.cat([p.grad.flatten(), torch.zeros(3)]) for p in parameters if p.grad is not None])
    torch.testing.assert_close(flat, theirs, rtol=1e-6, atol=0)
    assert torch.equal(flat, before) == (limit == 1e3)
    untouched = before.clone()
    DenseOptimizer(DenseConfig()).clip(untouched)
    assert torch.equal(untouched, before)
