"""The shard actor and its keeper: killed from outside by pid, adopted by the next generation."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from services.identity import Address, StaleGenerationError
from services.memory.process import ProcessIdentity, is_alive
from services.shard.memory import MarkedUpdate
from services.transport.messages import ObjectLookup, ObjectPush, Sender, to_array
from tests.services.ray_parts import ShardService, private_ray
from tests.services.shard.reference import BATCH, OPTIMIZERS, PIECES, RATE, random_push, replay, shard_spec

_FIRST, _SECOND = Address("shard", 0, 1), Address("shard", 0, 2)


@pytest.fixture(scope="module")
def service() -> Iterator[ShardService]:
    with private_ray():
        yield ShardService("actor", shards=0)


def _push(number: int) -> ObjectPush:
    grad, ids, offsets = random_push(number)
    return ObjectPush(number, RATE, to_array(ids), to_array(offsets), BATCH, to_array(grad))


def _sender(shard_generation: int, trainer_generation: int = 1) -> Sender:
    return Sender(0, trainer_generation, 0, shard_generation)


def _die(process: tuple[int, int]) -> None:
    os.kill(process[0], signal.SIGKILL)


def _check(optimizer: str, initial: torch.Tensor, shard: Any, marked: MarkedUpdate | None) -> int:
    """Everything but marked rows equals a replay of the pushes that were applied; returns how many."""
    import ray

    rows, applied = ray.get([shard.read_rows.remote(), shard.last_applied.remote(0)])
    reference, settled = replay(optimizer, initial, applied), []
    for piece in PIECES:
        marked_rows = set() if marked is None or marked.undone or marked.rows is None else set(marked.rows[piece.table])
        settled += [row not in marked_rows for row in range(piece.row_start, piece.row_end)]
    weights = torch.from_numpy(rows["weights"])
    assert weights.isfinite().all()
    assert torch.equal(weights.view(len(settled), 8)[settled], reference.weights.view(len(settled), 8)[settled])
    assert ("momentum1" in rows) == (optimizer != "exact_sgd")
    if reference.momentum is not None:
        momentum = torch.from_numpy(rows["momentum1"]).view(len(settled), -1)
        assert torch.equal(momentum[settled], reference.momentum.view(len(settled), -1)[settled])
    return int(applied)


def test_a_shard_without_rows_refuses_to_serve(service: ShardService) -> None:
    import ray

    shard = service.start(_FIRST)
    _, ids, offsets = random_push(1)
    lookup = ObjectLookup(to_array(ids), to_array(offsets), BATCH, "fp32")
    with pytest.raises(RuntimeError, match=r"shard-0\.g1 has no rows yet: a lookup before load or adopt is refused"):
        ray.get(shard.step_objects.remote(_sender(1), None, lookup))
    assert ray.get(shard.stats.remote()) == {}
    ray.kill(shard)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_next_generation_adopts_the_memory_of_a_killed_shard(service: ShardService, optimizer: str) -> None:
    import ray

    before = set(os.listdir("/dev/shm"))
    ray.get(service.keeper.release.remote(""))
    shard, successor = service.start(_FIRST), service.start(_SECOND)
    process, _ = ray.get(shard.load.remote(shard_spec(optimizer)))
    initial = torch.from_numpy(ray.get(shard.read_rows.remote())["weights"])
    watch = shard.watch.remote()
    calls = [shard.step_objects.remote(_sender(1), _push(number), None) for number in range(1, 1001)]
    ray.get(calls[20])
    _die(process)  # while it works on the others
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(watch)
    assert ray.get(service.keeper.kill.remote(process))  # and seen dead
    acknowledged = 0
    for call in calls:
        with contextlib.suppress(ray.exceptions.RayActorError):
            ray.get(call)
            acknowledged += 1

    new_process, marked, _ = ray.get(successor.adopt.remote(_SECOND))
    assert new_process[0] != process[0]
    applied = _check(optimizer, initial, successor, marked)
    assert 21 <= acknowledged <= applied

    for number in range(acknowledged + 1, applied + 1):  # the trainer does not know of these: it sends them again
        ray.get(successor.step_objects.remote(_sender(2), _push(number), None))
    assert _check(optimizer, initial, successor, marked) == applied
    ray.get(successor.step_objects.remote(_sender(2), _push(applied + 1), None))
    assert ray.get(successor.last_applied.remote(0)) == applied + 1
    if marked is None:
        assert _check(optimizer, initial, successor, None) == applied + 1

    with pytest.raises(StaleGenerationError, match="shard 0 carries generation 1, the current one is 2"):
        ray.get(successor.step_objects.remote(_sender(1), _push(applied + 2), None))
    ray.get(successor.step_objects.remote(_sender(2, trainer_generation=2), None, None))
    with pytest.raises(StaleGenerationError, match="trainer 0 carries generation 1, the current one is 2"):
        ray.get(successor.step_objects.remote(_sender(2), _push(applied + 2), None))
    assert ray.get(successor.last_applied.remote(0)) == applied + 1
    left = set(os.listdir("/dev/shm")) - before
    assert [name for name in left if not name.startswith("plasma")] == []
    ray.kill(successor)


def test_memory_is_not_adopted_twice_by_one_generation(service: ShardService) -> None:
    """A shard that was replaced and comes back finds that the memory is not its own any more."""
    import ray

    ray.get(service.keeper.release.remote(""))
    shard = service.start(_FIRST)
    ray.get(shard.load.remote(shard_spec("exact_sgd")))
    second, late = service.start(_SECOND), service.start(_SECOND)
    ray.kill(shard)
    ray.get(second.adopt.remote(_SECOND))
    with pytest.raises(StaleGenerationError, match="adoption of shard-0/rows carries generation 2"):
        ray.get(late.adopt.remote(_SECOND))
    for actor in (second, late):
        ray.kill(actor)


def test_the_keeper_kills_a_stopped_shard_before_its_memory_is_adopted(service: ShardService) -> None:
    import ray

    ray.get(service.keeper.release.remote(""))
    shard, successor = service.start(_FIRST), service.start(_SECOND)
    process, _ = ray.get(shard.load.remote(shard_spec("exact_adagrad")))
    ray.get(shard.step_objects.remote(_sender(1), _push(1), None))
    rows = ray.get(shard.read_rows.remote())
    os.kill(process[0], signal.SIGSTOP)
    assert ray.get(service.keeper.kill.remote(process))
    assert not is_alive(ProcessIdentity(*process))
    _, marked, _ = ray.get(successor.adopt.remote(_SECOND))
    assert marked is None
    found = ray.get(successor.read_rows.remote())
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in rows.items()
    }
    ray.kill(successor)
