"""The memory estimate that is printed before a run, against the pages a keeper really holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from checkpoint.piece import Piece
from services.identity import Address
from services.memory.store import MemoryStore
from services.placement.memory import EmbeddingOptimizer, WeightsPrecision, cost_of
from services.shard.core import ShardCore
from services.shard.memory import ShardSpec
from services.shard.tracking import TrackingSpec

_ROWS = {"site": 60_000, "user": 40_000}
_BATCH = 1000
_NAME = f"test-{os.getpid()}-memory-use"


@pytest.fixture
def keeper() -> Iterator[str]:
    store = MemoryStore(_NAME)
    yield store.name
    store.close()


def held_bytes(region: str) -> int:
    """Pages of a memory file that exist, as the kernel counts them."""
    found = [
        os.stat(link)
        for link in Path("/proc/self/fd").iterdir()
        if os.path.islink(link) and os.readlink(link).startswith(f"/memfd:penumbra:{region}")
    ]
    assert found
    return found[0].st_blocks * 512


@pytest.mark.parametrize("dim", [16, 64])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("optimizer", ["exact_sgd", "exact_adagrad", "exact_row_wise_adagrad"])
def test_the_estimate_is_within_a_tenth_of_what_is_held(
    keeper: str, dim: int, precision: WeightsPrecision, optimizer: EmbeddingOptimizer
) -> None:
    spec = ShardSpec(
        run="test",
        shard_id=0,
        pieces=tuple(Piece(table, 0, rows, 0, dim) for table, rows in _ROWS.items()),
        table_rows=_ROWS,
        table_dims=dict.fromkeys(_ROWS, dim),
        optimizer=optimizer,
        eps=1e-8,
        seed=0,
        streams=1024,
        weights_precision=precision,
        tracking=TrackingSpec(tables=tuple(_ROWS)),
    )
    core = ShardCore.create(keeper, Address("shard", 0, 1), spec)
    for step in range(60):  # every row is trained
        ids = torch.cat([(step * _BATCH + torch.arange(_BATCH)) % rows for rows in _ROWS.values()])
        core.push(0, step + 1, torch.ones(_BATCH, 2 * dim), ids, core.unit_offsets(_BATCH), 0.1)
    core.memory.arrays["access_counters"].fill_(1)
    costs = [cost_of(rows, dim, optimizer, precision) for rows in _ROWS.values()]
    estimate = sum(cost.total_bytes for cost in costs)
    held = held_bytes("shard-0/rows")
    print(f"estimated {estimate:,} bytes, held {held:,}: {estimate / held - 1:+.2%}")
    assert estimate == pytest.approx(held, rel=0.1)
    sizes = core.memory.sizes
    assert sizes["rows_bytes"] == sum(cost.weights_bytes for cost in costs)
    assert sizes["optimizer_bytes"] == sum(cost.optimizer_bytes for cost in costs)
