"""What a shard's successor finds after SIGKILL: every row as the applied pushes left it, but for a reported update."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch

from checkpoint.piece import Piece
from services.identity import Address, StaleGenerationError
from services.memory.process import identify, kill_and_confirm
from services.memory.store import MemoryStore
from services.shard import memory as shard_memory
from services.shard.core import ShardCore
from services.shard.memory import MarkedUpdate, ShardMemory
from tests.services.shard.reference import OPTIMIZERS, PIECES, RATE, Reference, random_push, replay, shard_spec

_SHARD = Address("shard", 0, 1)

_PUSHES = 1_000_000  # more than any of them gets to
_PUSHERS = f"""
import os, sys
import torch
from services.identity import Address
from services.shard.core import ShardCore
from tests.services.shard.reference import DIFFERENT_PUSHES, RATE, random_push
torch.set_num_threads(1)
pushes = [random_push(number) for number in range(1, DIFFERENT_PUSHES + 1)]
for line in sys.stdin:  # one process a line, forked so that the imports are paid for once
    if os.fork() == 0:
        core, _ = ShardCore.adopt(sys.argv[1], Address("shard", int(line), 2))
        print(os.getpid(), flush=True)
        for number in range(1, {_PUSHES} + 1):
            core.push(0, number, *pushes[(number - 1) % DIFFERENT_PUSHES], RATE)
        os._exit(0)
"""


@pytest.fixture
def keeper() -> Iterator[str]:
    store = MemoryStore(f"test-{os.getpid()}-adoption")
    yield store.name
    store.close()


def _rows_of(pieces: tuple[Piece, ...], marked: MarkedUpdate) -> list[int]:
    """Positions among all rows of a shard that a marked update names."""
    assert marked.rows is not None
    positions, start = [], 0
    for piece in pieces:
        positions += [start + row - piece.row_start for row in marked.rows[piece.table]]
        start += piece.rows
    return positions


def _check(optimizer: str, initial: torch.Tensor, adopted: ShardMemory, marked: MarkedUpdate | None) -> None:
    """Compare with pushes 1 … last applied, done by fbgemm's autograd; only marked rows may differ."""
    reference = replay(optimizer, initial, adopted.last_applied(0))
    rows = sum(piece.rows for piece in PIECES)
    settled = torch.ones(rows, dtype=torch.bool)
    if marked is not None:
        assert (marked.stream, marked.sequence) == (0, adopted.last_applied(0) + 1)
        if not marked.undone:
            settled[_rows_of(PIECES, marked)] = False
    assert adopted.weights.isfinite().all()
    assert torch.equal(adopted.weights.view(rows, 8)[settled], reference.weights.view(rows, 8)[settled])
    if reference.momentum is not None:
        assert adopted.momentum is not None
        assert adopted.momentum.isfinite().all()
        assert torch.equal(adopted.momentum.view(rows, -1)[settled], reference.momentum.view(rows, -1)[settled])


def _die_half_way(core: ShardCore, after: Reference) -> None:
    """The state a death leaves between the mark and its end: part of the rows have the update, the others not."""
    _, ids, offsets = random_push(4)
    core.memory.begin_update(0, 4, ids, offsets)
    half = PIECES[0].rows * 8  # the first piece was written, its state not yet, the other pieces not at all
    core.memory.weights[:half] = after.weights[:half]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_kill_inside_an_update_is_taken_back(keeper: str, optimizer: str) -> None:
    core = ShardCore.create(keeper, _SHARD, shard_spec(optimizer))
    initial = core.memory.weights.clone()
    for number in (1, 2, 3):
        core.push(0, number, *random_push(number), RATE)
    _die_half_way(core, replay(optimizer, initial, 4))

    adopted, marked = ShardCore.adopt(keeper, _SHARD._replace(generation=2))
    assert marked == MarkedUpdate(0, 4, True, {})
    assert adopted.memory.last_applied(0) == 3
    _check(optimizer, initial, adopted.memory, marked)
    assert adopted.push(0, 4, *random_push(4), RATE)  # the trainer re-sends what nobody acknowledged
    _check(optimizer, initial, adopted.memory, None)

    _, marked = ShardCore.adopt(keeper, _SHARD._replace(generation=3))
    assert marked is None  # reported once, and done since


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_kill_inside_an_update_too_large_to_be_taken_back_is_reported_with_its_rows(
    keeper: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_memory, "_UNDO_NUMEL", 8)
    core = ShardCore.create(keeper, _SHARD, shard_spec(optimizer))
    initial = core.memory.weights.clone()
    for number in (1, 2, 3):
        core.push(0, number, *random_push(number), RATE)
    _die_half_way(core, replay(optimizer, initial, 4))

    adopted, marked = ShardCore.adopt(keeper, _SHARD._replace(generation=2))
    _, ids, offsets = random_push(4)
    expected = {}
    for index, piece in enumerate(PIECES):
        own = ids[int(offsets[index * 16]) : int(offsets[(index + 1) * 16])]
        expected[piece.table] = sorted({int(row) + piece.row_start for row in own})
    assert marked == MarkedUpdate(0, 4, False, expected)
    _check(optimizer, initial, adopted.memory, marked)


def test_pieces_of_different_widths_are_taken_back(keeper: str) -> None:
    pieces = (Piece("user", 0, 100, 0, 8), Piece("user", 110, 160, 0, 4), Piece("user", 0, 7, 0, 16))
    spec = dataclasses.replace(shard_spec("exact_adagrad", pieces), table_dims={"user": 16})
    core = ShardCore.create(keeper, _SHARD, spec)
    before = core.memory.weights.clone(), core.memory.arrays["momentum1"].clone()
    ids, offsets = torch.tensor([5, 99, 5, 49, 0, 6, 6]), torch.tensor([0, 2, 3, 3, 5, 6, 7])
    grad = torch.ones(2, 28)
    assert core.push(0, 1, grad, ids, offsets, 0.5)
    assert not torch.equal(core.memory.weights, before[0])
    core.memory.arrays["mark"][0] = 1  # as if it had died before it could record the push …
    core.memory.arrays["applied"][0] = 0
    adopted, marked = ShardCore.adopt(keeper, _SHARD._replace(generation=2))
    assert marked == MarkedUpdate(0, 1, True, {})
    assert torch.equal(adopted.memory.weights, before[0])
    assert torch.equal(adopted.memory.arrays["momentum1"], before[1])


def test_a_kill_after_the_update_was_recorded_reports_nothing(keeper: str) -> None:
    """Death between recording the number and taking the mark down: the update is complete."""
    core = ShardCore.create(keeper, _SHARD, shard_spec("exact_adagrad"))
    core.push(0, 1, *random_push(1), RATE)
    core.memory.arrays["mark"][0] = 1
    adopted, marked = ShardCore.adopt(keeper, _SHARD._replace(generation=2))
    assert marked is None
    assert not adopted.push(0, 1, *random_push(1), RATE)


def test_two_pieces_of_one_table_are_reported_together(keeper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_memory, "_UNDO_NUMEL", 1)
    pieces = (Piece("user", 0, 100, 0, 8), Piece("user", 300, 400, 0, 8))
    core = ShardCore.create(keeper, _SHARD, shard_spec("exact_sgd", pieces))
    core.memory.begin_update(2, 9, torch.tensor([5, 7, 5, 0, 99]), torch.tensor([0, 2, 3, 4, 5]))
    _, marked = ShardCore.adopt(keeper, _SHARD._replace(generation=2))
    assert marked == MarkedUpdate(2, 9, False, {"user": [5, 7, 300, 399]})


def test_an_update_larger_than_the_mark_concerns_any_row(keeper: str) -> None:
    core = ShardCore.create(keeper, _SHARD, shard_spec("exact_sgd"))
    count = shard_memory.MARK_IDS + 1
    ids = torch.zeros(count, dtype=torch.int64)
    core.memory.begin_update(0, 1, ids, torch.tensor([0, count, count, count]))
    _, marked = ShardCore.adopt(keeper, _SHARD._replace(generation=2))
    assert marked == MarkedUpdate(0, 1, False, None)


def test_adoption_needs_a_younger_generation(keeper: str) -> None:
    ShardCore.create(keeper, _SHARD, shard_spec("exact_sgd"))
    with pytest.raises(StaleGenerationError):
        ShardCore.adopt(keeper, _SHARD)


def test_a_shard_killed_at_any_moment_leaves_what_its_pushes_made(keeper: str) -> None:
    """Ten processes, each pushing as fast as it can, each killed from outside at another moment."""
    before = set(os.listdir("/dev/shm"))
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _PUSHERS, keeper],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as pushers:
        assert pushers.stdin is not None
        assert pushers.stdout is not None
        for repetition in range(10):
            optimizer, address = OPTIMIZERS[repetition % 3], Address("shard", repetition, 1)
            initial = ShardCore.create(keeper, address, shard_spec(optimizer)).memory.weights.clone()
            pushers.stdin.write(f"{repetition}\n")
            pushers.stdin.flush()
            victim = identify(int(pushers.stdout.readline()))
            time.sleep(0.001 + 0.0017 * repetition)
            assert kill_and_confirm(victim)
            adopted, marked = ShardCore.adopt(keeper, address._replace(generation=3))
            assert adopted.memory.last_applied(0) < _PUSHES  # it was killed while it pushed
            _check(optimizer, initial, adopted.memory, marked)
        pushers.stdin.close()
    left = set(os.listdir("/dev/shm")) - before
    assert [name for name in left if not name.startswith("plasma")] == []  # Ray's, if one runs beside
