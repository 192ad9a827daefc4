"""A shard without its actor: fbgemm's numbers bit for bit, pushes exactly once, bad ids never near a row."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from checkpoint.piece import Piece
from checkpoint.row_init import initial_rows
from services.identity import Address
from services.memory.store import MemoryStore
from services.shard.core import SEQUENCE_BITS, ShardCore
from services.shard.memory import ShardMemory
from services.shard.tbe import IdRangeError
from tests.services.shard.reference import OPTIMIZERS, PIECES, RATE, Reference, random_push, shard_spec

_SHARD = Address("shard", 0, 1)


@pytest.fixture
def keeper() -> Iterator[str]:
    store = MemoryStore(f"test-{os.getpid()}-core")
    yield store.name
    store.close()


def _contents(memory: ShardMemory) -> list[torch.Tensor]:
    return [array.clone() for _, array in sorted(memory.arrays.items())]


def _same(memory: ShardMemory, before: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, _contents(memory), before))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_lookups_and_pushes_are_fbgemms_own_bit_for_bit(keeper: str, optimizer: str) -> None:
    core = ShardCore.create(keeper, _SHARD, shard_spec(optimizer))
    reference = Reference(optimizer, core.memory.weights)
    for number in range(1, 31):
        grad, ids, offsets = random_push(number)
        pooled = core.lookup(ids, offsets)
        assert torch.equal(pooled, reference.lookup(ids, offsets))
        assert not pooled.requires_grad  # nor drags a graph behind it
        assert core.push(0, number, grad, ids, offsets, RATE)
        reference.push(grad, ids, offsets)
        assert torch.equal(core.memory.weights, reference.weights)
    if optimizer == "exact_sgd":
        assert core.memory.momentum is None
    else:
        assert core.memory.momentum is not None
        assert reference.momentum is not None
        assert torch.equal(core.memory.momentum, reference.momentum)


def test_the_learning_rate_of_a_push_is_its_own(keeper: str) -> None:
    core = ShardCore.create(keeper, _SHARD, shard_spec("exact_sgd"))
    before = core.memory.weights.clone()
    grad, ids, offsets = random_push(1)
    core.push(0, 1, grad, ids, offsets, 0.0)
    assert torch.equal(core.memory.weights, before)
    core.push(0, 2, grad, ids, offsets, 1.0)
    change = core.memory.weights - before
    core.push(0, 3, grad, ids, offsets, -1.0)
    assert change.abs().max() > 0.5
    torch.testing.assert_close(core.memory.weights, before, atol=1e-6, rtol=0)


def test_rows_start_as_their_table_says_whatever_the_placement(keeper: str) -> None:
    halves = (Piece("user", 150, 300, 0, 8), Piece("user", 300, 400, 4, 8), Piece("user", 300, 400, 0, 4))
    core = ShardCore.create(keeper, _SHARD, shard_spec("exact_sgd", halves))
    table = initial_rows(11, "user", 400, 8, 0, 400)
    first, right, left = core.memory.weights.split([150 * 8, 100 * 4, 100 * 4])
    np.testing.assert_array_equal(first.view(150, 8).numpy(), table[150:300])
    np.testing.assert_array_equal(right.view(100, 4).numpy(), table[300:, 4:])
    np.testing.assert_array_equal(left.view(100, 4).numpy(), table[300:, :4])
    assert core.memory.region.ready


def test_a_shard_that_owns_nothing_starts(keeper: str) -> None:
    core = ShardCore.create(keeper, _SHARD, shard_spec("exact_adagrad", ()))
    assert core.total_dim == 0
    adopted, marked = ShardCore.adopt(keeper, _SHARD._replace(generation=2))
    assert marked is None
    assert adopted.memory.weights.numel() == 0


def test_a_push_is_applied_exactly_once(keeper: str) -> None:
    core = ShardCore.create(keeper, _SHARD, shard_spec("exact_adagrad"))
    for number in (1, 2, 3):
        assert core.push(0, number, *random_push(number), RATE)
    before = _contents(core.memory)
    for number in (3, 2, 1):
        assert not core.push(0, number, *random_push(number), RATE)
    assert _same(core.memory, before)
    assert core.memory.last_applied(0) == 3
    accesses = sum(random_push(number)[1].numel() for number in (1, 2, 3))
    assert core.memory.counts == {
        "pushes": 3, "samples": 48, "lookups": 0, "accesses": accesses, "pending_accesses": accesses
    }  # fmt: skip


def test_streams_number_their_pushes_independently(keeper: str) -> None:
    core = ShardCore.create(keeper, _SHARD, shard_spec("exact_sgd"))
    assert core.push(0, 5, *random_push(1), RATE)
    assert core.push(3, 1, *random_push(1), RATE)
    assert [core.memory.last_applied(stream) for stream in range(4)] == [5, 0, 0, 1]


def test_numbers_of_an_older_trainer_generation_are_dead(keeper: str) -> None:
    core = ShardCore.create(keeper, _SHARD, shard_spec("exact_sgd"))
    old, new = 1 << SEQUENCE_BITS, 2 << SEQUENCE_BITS
    assert core.push(0, old + 1_000_000, *random_push(1), RATE)
    assert core.push(0, new + 1, *random_push(2), RATE)
    before = _contents(core.memory)
    assert not core.push(0, old + 1_000_001, *random_push(3), RATE)
    assert _same(core.memory, before)


def test_what_was_applied_is_known_to_the_next_incarnation(keeper: str) -> None:
    core = ShardCore.create(keeper, _SHARD, shard_spec("exact_adagrad"))
    core.push(1, 7, *random_push(1), RATE)
    before = _contents(core.memory)
    adopted, marked = ShardCore.adopt(keeper, _SHARD._replace(generation=2))
    assert marked is None
    assert adopted.memory.spec == core.memory.spec
    assert not adopted.push(1, 7, *random_push(1), RATE)
    assert _same(adopted.memory, before)
    assert adopted.push(1, 8, *random_push(2), RATE)


@pytest.mark.parametrize(
    ("piece", "bad", "says"),
    [
        (0, 90, r"table 'site': 1 ids outside piece site\[0:90, 0:8\] of 90 rows, the first is 90"),
        (1, -1, r"table 'sex': 1 ids outside .* the first is -1"),  # fbgemm alone would let it pass
        (1, -2, r"table 'sex': 1 ids outside .* the first is -2"),
        (2, 250, r"table 'user': 1 ids outside piece user\[150:400, 0:8\] of 250 rows, the first is 250"),
        (2, 2**62, "table 'user'"),
    ],
)
def test_an_id_outside_its_piece_is_named_and_nothing_is_written(keeper: str, piece: int, bad: int, says: str) -> None:
    core = ShardCore.create(keeper, _SHARD, shard_spec("exact_adagrad"))
    core.push(0, 1, *random_push(1), RATE)
    grad, ids, offsets = random_push(2)
    ids[offsets[piece * 16 + 16] - 1] = bad
    before = _contents(core.memory)
    with pytest.raises(IdRangeError, match=says):
        core.lookup(ids, offsets)
    with pytest.raises(IdRangeError, match=says):
        core.push(0, 2, grad, ids, offsets, RATE)
    assert _same(core.memory, before)
    assert core.push(0, 2, *random_push(2), RATE)  # the number was not used up


@pytest.mark.parametrize("damage", ["first", "last", "order", "count"])
def test_offsets_that_do_not_describe_the_ids_are_refused(keeper: str, damage: str) -> None:
    core = ShardCore.create(keeper, _SHARD, shard_spec("exact_adagrad"))
    grad, ids, offsets = random_push(1)
    if damage == "first":
        offsets[0] = 1
    elif damage == "last":
        offsets[-1] += 1
    elif damage == "order":
        offsets[20] = offsets[-1]
    else:
        offsets = torch.cat([offsets, offsets[-1:]])
    before = _contents(core.memory)
    with pytest.raises(IdRangeError, match="do not describe"):
        core.push(0, 1, grad, ids, offsets, RATE)
    assert _same(core.memory, before)


def test_a_gradient_of_another_shape_is_refused(keeper: str) -> None:
    core = ShardCore.create(keeper, _SHARD, shard_spec("exact_adagrad"))
    grad, ids, offsets = random_push(1)
    before = _contents(core.memory)
    for wrong in (grad[:-1], grad[:, :-1]):
        with pytest.raises(ValueError, match=r"gradient is .*, expected \(16, 24\)"):
            core.push(0, 1, wrong, ids, offsets, RATE)
    assert _same(core.memory, before)


def test_weights_must_be_as_many_as_ids(keeper: str) -> None:
    core = ShardCore.create(keeper, _SHARD, shard_spec("exact_adagrad"))
    grad, ids, offsets = random_push(1)
    before = _contents(core.memory)
    for call in (lambda w: core.lookup(ids, offsets, w), lambda w: core.push(0, 1, grad, ids, offsets, RATE, w)):
        with pytest.raises(ValueError, match="per-sample weights for"):
            call(torch.ones(ids.numel() - 1))
    assert _same(core.memory, before)


def test_fp16_rows_start_as_the_rounded_ones_and_survive_their_shard(keeper: str) -> None:
    spec = dataclasses.replace(shard_spec("exact_row_wise_adagrad"), weights_precision="fp16")
    core = ShardCore.create(keeper, _SHARD, spec)
    site = torch.from_numpy(initial_rows(11, "site", 90, 8, 0, 90))
    assert torch.equal(core.memory.weights[: 90 * 8].view(90, 8), site.half())
    pooled = core.lookup(*random_push(1)[1:])
    assert pooled.dtype == torch.float32
    core.push(0, 1, *random_push(1), RATE)
    before = _contents(core.memory)
    adopted, marked = ShardCore.adopt(keeper, _SHARD._replace(generation=2))
    assert marked is None
    assert adopted.memory.spec == spec
    assert adopted.memory.weights.dtype == torch.float16
    assert _same(adopted.memory, before)
    assert adopted.push(0, 2, *random_push(2), RATE)
    assert not _same(adopted.memory, before)


def test_one_id_everywhere_needs_no_offsets(keeper: str) -> None:
    core = ShardCore.create(keeper, _SHARD, shard_spec("exact_sgd"))
    for batch in (4, 2, 7):
        assert torch.equal(core.unit_offsets(batch), torch.arange(batch * len(PIECES) + 1))
