"""Phases of the training loop: every second of a thread is in exactly one of them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.trainer.hogwild_parts import DIM, FEATURES, Client, Source, Tables, Ticket, batches, replica
from trainer.data.batch import Batch
from trainer.hogwild import HogwildWorker
from trainer.ledger import Ledger
from trainer.pause import PauseGate

PAUSE_S = 0.004
STEPS = 25


class SlowSource(Source):
    def get(self, block: bool = True) -> Batch | None:
        time.sleep(PAUSE_S)
        return super().get(block)


class SlowClient(Client):
    def pooled(self, ticket: Ticket, out: Tensor) -> None:
        time.sleep(2 * PAUSE_S)
        super().pooled(ticket, out)

    def push(self, ticket: Ticket, grad: Tensor, learning_rate: float, following: Batch | None) -> Ticket | None:
        time.sleep(3 * PAUSE_S)
        return super().push(ticket, grad, learning_rate, following)


@pytest.mark.parametrize("lookahead", [0, 2])
@pytest.mark.parametrize("evaluations", [0, 5])
def test_phases_sum_to_the_time_of_the_thread(lookahead: int, evaluations: int) -> None:
    dense = replica()
    work = batches(STEPS)
    work += [replace(batch, purpose="eval") for batch in work[:evaluations]]
    loop = HogwildWorker(
        dense,
        "fp32",
        SlowClient(Tables()),
        SlowSource(work),
        None,
        Ledger(),
        lambda _: (0.1, 0.1),
        lambda: dense.weights,
        lambda batch: True,
        lambda: False,
        lambda: 0.0,
        PauseGate(1),
        lookahead=lookahead,
        pooled_shape=(8, FEATURES, DIM),
        pooled_dtype=torch.float32,
    )
    started = time.perf_counter()
    loop.run()
    whole_s = time.perf_counter() - started
    phases = loop.phases.as_dict()
    assert loop.steps == STEPS and all(seconds >= 0 for seconds in phases.values())
    assert sum(phases.values()) == pytest.approx(whole_s, rel=0.02)
    named = whole_s - phases["other"]
    assert named >= STEPS * 6 * PAUSE_S, "nothing that was waited for hides in 'other'"
    assert phases["input"] >= STEPS * PAUSE_S
    assert phases["lookup_wait"] >= STEPS * 2 * PAUSE_S
    assert phases["push"] >= STEPS * 3 * PAUSE_S
    assert phases["other"] >= evaluations * 2 * PAUSE_S
