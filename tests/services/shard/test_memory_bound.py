"""A shard process needs its rows, their optimizer state and 450 MB, however large its tables are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from checkpoint.piece import Piece
from services.transport.client import ShardedEmbeddingClient
from services.transport.routing import Router
from tests.services.ray_parts import ShardService, private_ray, shard_specs
from trainer.data.batch import Batch

_BOUND_BYTES = 450_000_000
_TRAINERS = 2
_LOOKAHEAD = 2
_DIM = 16


@pytest.fixture(scope="module")
def service() -> Iterator[ShardService]:
    with private_ray():
        yield ShardService("memory", shards=1)


@pytest.mark.parametrize(
    ("tables", "rows", "batch", "steps"),
    [(26, 40_000, 2048, 20), (26, 40_000, 8192, 10), (4, 4_000_000, 8192, 10)],
    ids=["kaggle, B=2048", "kaggle, B=8192", "1 GB of rows, B=8192"],
)
def test_resident_memory_is_rows_state_and_a_constant(
    service: ShardService, tables: int, rows: int, batch: int, steps: int
) -> None:
    import ray

    names = {f"t{index}": rows for index in range(tables)}
    pieces = [tuple(Piece(name, 0, rows, 0, _DIM) for name in names)]
    (spec,) = shard_specs(pieces, names, _DIM, "exact_row_wise_adagrad")
    ray.get(service.keeper.release.remote(""))
    pid, _ = ray.get(service.shards[0].load.remote(spec))
    clients = [
        ShardedEmbeddingClient(
            service.next_trainer()._replace(index=index),
            0,
            index,
            Router(list(names), names, _DIM, pieces),
            service.targets("slab"),
            batch=batch,
            lookahead=_LOOKAHEAD,
            wire="bf16",
        )
        for index in range(_TRAINERS)
    ]
    generator = torch.Generator().manual_seed(0)
    out = torch.empty(batch, tables, _DIM, dtype=torch.bfloat16)

    def draw() -> Batch:
        ids = torch.randint(0, rows, (tables * batch,), generator=generator)
        return Batch(torch.zeros(batch, 0), torch.zeros(batch), ids, None, spans=())

    for client in clients:
        in_flight = [client.lookup(draw()) for _ in range(_LOOKAHEAD + 1)]
        for _ in range(steps):
            ticket = in_flight.pop(0)
            client.pooled(ticket, out)
            in_flight.append(client.push(ticket, out, 0.01, draw()))
        for ticket in in_flight:
            client.discard(ticket)

    held_bytes = tables * rows * (_DIM * 4 + 4)
    private_bytes, shared_bytes = _resident_bytes(pid)
    assert shared_bytes > held_bytes  # all rows were touched when they were initialized
    assert private_bytes <= _BOUND_BYTES, f"{private_bytes / 1e6:.0f} MB beside rows and slabs"
    if batch == 2048:  # the slabs, which the trainers map too, grow with the batch: some 50 MB a trainer at B=8192
        beside = private_bytes + shared_bytes - held_bytes
        assert beside <= _BOUND_BYTES, f"{beside / 1e6:.0f} MB beside the rows"


def _resident_bytes(pid: int) -> tuple[int, int]:
    """Memory of the process's own (libraries included), and shared with others (rows and slabs)."""
    status = Path(f"/proc/{pid}/status").read_text()
    anonymous, files, shared = (
        int(value) * 1024 for value in re.findall(r"Rss(?:Anon|File|Shmem):\s+(\d+) kB", status)
    )
    return anonymous + files, shared
