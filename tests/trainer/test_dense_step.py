"""One dense step: equal to plain autograd, safe between threads, and without effect when it is not finite."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from tests.trainer.hogwild_parts import DENSE, DIM, FEATURES, MODEL, batches, replica
from trainer.dense_step import DenseStep
from trainer.dlrm import build_dense


def pooled(size: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, FEATURES, DIM, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_steps_equal_torch_optim(optimizer: str) -> None:
    shared = replica(optimizer)
    step = DenseStep(shared, "fp32")
    module = build_dense(MODEL, DENSE, FEATURES, 1)
    kind = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}[optimizer]
    reference = kind(module.parameters(), lr=0.01, **({} if optimizer == "sgd" else {"eps": 1e-8}))
    for number, batch in enumerate(batches(10)):
        leaf = pooled(seed=number).requires_grad_(True)
        loss = binary_cross_entropy_with_logits(module(batch.dense, leaf), batch.labels)
        reference.zero_grad()
        loss.backward()
        reference.step()
        result = step.train(batch, pooled(seed=number), 0.01)
        assert result.loss == pytest.approx(float(loss.detach()), rel=1e-5)
        assert result.embedding_grad is not None and leaf.grad is not None
        torch.testing.assert_close(result.embedding_grad, leaf.grad, rtol=1e-4, atol=1e-7)
    for view, parameter in zip(shared.layout.views(shared.weights), module.parameters(), strict=True):
        torch.testing.assert_close(view, parameter.detach(), rtol=1e-3, atol=1e-6)


def test_bfloat16_stays_near_single_precision() -> None:
    batch = batches(1)[0]
    single, half = (DenseStep(replica(), precision).train(batch, pooled(), 0.0) for precision in ("fp32", "bf16"))
    assert half.loss != single.loss and half.loss == pytest.approx(single.loss, rel=0.02)
    assert half.embedding_grad is not None and half.embedding_grad.dtype == torch.float32


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_threads_that_train_one_replica_at_once_do_not_break_autograd(precision: str) -> None:
    shared = replica("adam")
    start, failures, losses = threading.Barrier(2), list[BaseException](), dict[int, list[float]]()

    def train(thread: int) -> None:
        try:
            step = DenseStep(shared, precision)
            start.wait()
            losses[thread] = [
                step.train(batch, pooled(seed=number), 0.01).loss
                for number, batch in enumerate(batches(150, seed=thread))
            ]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=train, args=(thread,)) for thread in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert [len(losses[thread]) for thread in range(2)] == [150, 150]
    assert all(map(math.isfinite, losses[0] + losses[1])) and bool(shared.weights.isfinite().all())


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["dense", "pooled"])
def test_a_loss_that_is_not_finite_applies_nothing(where: str, value: float) -> None:
    shared = replica("adam")
    step = DenseStep(shared, "fp32")
    good, bad = batches(2)
    step.train(good, pooled(), 0.01)
    weights, state, rows = shared.weights.clone(), shared.state.clone(), pooled()
    (bad.dense if where == "dense" else rows).view(-1)[3] = value
    result = step.train(bad, rows, 0.01)
    assert not math.isfinite(result.loss) and result.embedding_grad is None
    assert torch.equal(shared.weights, weights) and torch.equal(shared.state, state)
    assert step.train(good, pooled(), 0.01).embedding_grad is not None


def test_a_gradient_that_is_not_finite_applies_nothing_although_the_loss_is() -> None:
    shared = replica("adagrad")
    scales = iter((1e-37, 1e20, 1.0, 0.1))  # the products of the forward pass stay small, those of the backward do not
    for slot, view in zip(shared.layout.slots, shared.layout.views(shared.weights), strict=True):
        view.fill_(next(scales) if slot.name.endswith("weight") else 0.0)
    weights, (batch,) = shared.weights.clone(), batches(1)
    batch.dense.fill_(1e20)
    result = DenseStep(shared, "fp32").train(batch, torch.zeros(8, FEATURES, DIM), 0.01)
    assert math.isfinite(result.loss) and result.embedding_grad is None
    assert torch.equal(shared.weights, weights) and not shared.state.any()


def test_predicting_leaves_no_trace_and_uses_the_weights_given() -> None:
    shared = replica()
    step, (batch,) = DenseStep(shared, "fp32"), batches(1)
    other = shared.weights * 2
    before = shared.weights.clone()
    first, second = step.predict(batch, pooled(), other), step.predict(batch, pooled(), shared.weights)
    module = build_dense(MODEL, DENSE, FEATURES, 1)
    with torch.no_grad():
        torch.testing.assert_close(second, module(batch.dense, pooled()))
    assert not torch.equal(first, second) and torch.equal(shared.weights, before)
    assert first.shape == (8,) and not first.requires_grad
