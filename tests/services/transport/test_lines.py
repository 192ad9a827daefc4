"""Slabs and Ray objects over real actors: equal answers, numbered pushes, growth, and stale callers refused."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from checkpoint.piece import Piece
from checkpoint.row_init import initial_rows
from services.identity import Address, StaleGenerationError
from services.shard.tbe import IdRangeError
from services.transport.client import ShardedEmbeddingClient
from services.transport.errors import ShardUnavailableError
from services.transport.messages import Sender, narrow_ids
from services.transport.routing import RoutedIds, Router, order_pieces
from services.transport.shard_client import LineSpec, ObjectLine, ShardLine, ShardTarget, SlabLine
from services.transport.slab import create_slab
from tests.services.ray_parts import ShardService, private_ray, shard_specs
from trainer.data.batch import Batch

_ROWS = {"site": 60, "user": 100, "sex": 3}
_DIM = 8
_PIECES = [
    order_pieces([Piece("site", 0, 60, 0, 8), Piece("user", 0, 70, 0, 8)], list(_ROWS), _ROWS),
    order_pieces([Piece("sex", 0, 3, 0, 8), Piece("user", 70, 100, 0, 8)], list(_ROWS), _ROWS),
]
_RATE = 0.1


@pytest.fixture(scope="module")
def service() -> Iterator[ShardService]:
    with private_ray():
        yield ShardService("lines", shards=2)


@pytest.fixture
def loaded(service: ShardService) -> ShardService:
    service.load(shard_specs(_PIECES, _ROWS, _DIM, "exact_sgd"))
    return service


def _client(
    service: ShardService, transport: str, wire: str = "fp32", lookahead: int = 0, trainer: Address | None = None
) -> ShardedEmbeddingClient:
    return ShardedEmbeddingClient(
        trainer or service.next_trainer(),
        0,
        0,
        Router(list(_ROWS), _ROWS, _DIM, _PIECES),
        service.targets(transport),
        batch=16,
        lookahead=lookahead,
        wire=wire,
    )


def _batch(seed: int, size: int = 16, most: int | None = None) -> Batch:
    """One id everywhere, or bags of 0 … ``most``."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.ones(len(_ROWS), size, dtype=torch.int64)
    if most is not None:
        lengths = torch.randint(0, most + 1, lengths.shape, generator=generator)
    ids = [
        torch.randint(0, count, (int(own.sum()),), generator=generator)
        for count, own in zip(_ROWS.values(), lengths, strict=True)
    ]
    flat = None if most is None else lengths.view(-1)
    return Batch(torch.zeros(size, 0), torch.zeros(size), torch.cat(ids), flat, spans=())


def _whole_tables() -> list[Tensor]:
    return [torch.from_numpy(initial_rows(3, table, count, _DIM, 0, count)) for table, count in _ROWS.items()]


def _expected(tables: Sequence[Tensor], batch: Batch) -> Tensor:
    """Pooled rows B×F×D by torch's own embedding bag on the whole tables."""
    offsets, columns = batch.offsets(len(tables)), []
    for feature, table in enumerate(tables):
        own = offsets[feature * batch.size : (feature + 1) * batch.size + 1]
        bags = torch.nn.functional.embedding_bag(
            batch.values[own[0] : own[-1]], table, own - own[0], mode="sum", include_last_offset=True
        )
        columns.append(bags)
    return torch.stack(columns, dim=1)


def _pooled(client: ShardedEmbeddingClient, batch: Batch) -> Tensor:
    ticket, out = client.lookup(batch), torch.full((batch.size, len(_ROWS), _DIM), torch.nan)
    client.pooled(ticket, out)
    client.discard(ticket)
    return out


def _rows(service: ShardService) -> list[np.ndarray]:
    import ray

    return [found["weights"] for found in ray.get([shard.read_rows.remote() for shard in service.shards])]


@pytest.mark.parametrize("most", [None, 3])
def test_both_lines_give_equal_rows_and_equal_updates(service: ShardService, most: int | None) -> None:
    after = {}
    for transport in ("slab", "object"):
        service.load(shard_specs(_PIECES, _ROWS, _DIM, "exact_adagrad"))
        client, seen = _client(service, transport), []
        ticket = client.lookup(_batch(0, most=most))
        for step in range(1, 8):
            out = torch.empty(ticket.batch.size, len(_ROWS), _DIM)
            client.pooled(ticket, out)
            seen.append(out)
            following = _batch(step, size=16 - step, most=most)  # batches need not be full
            ticket = client.push(ticket, 0.3 * out + 0.1, _RATE, following)
            assert ticket is not None
        client.discard(ticket)
        after[transport] = [*seen, *map(torch.from_numpy, _rows(service))]
    torch.testing.assert_close(after["slab"][0], _expected(_whole_tables(), _batch(0, most=most)), atol=1e-6, rtol=0)
    for slab, through_objects in zip(after["slab"], after["object"], strict=True):
        assert torch.equal(slab, through_objects)


@pytest.mark.parametrize("transport", ["slab", "object"])
def test_bf16_on_the_wire_rounds_what_travels_and_nothing_else(loaded: ShardService, transport: str) -> None:
    batch, exact = _batch(1), _client(loaded, "object")
    # Each row here lies in one piece, so that one rounding of the exact row is what arrives.
    sent = _pooled(exact, batch)
    client = _client(loaded, transport, wire="bf16")
    ticket, out = client.lookup(batch), torch.empty(16, len(_ROWS), _DIM)
    client.pooled(ticket, out)
    assert torch.equal(out, sent.bfloat16().float())
    assert not torch.equal(out, sent)
    before = _rows(loaded)
    grad = torch.randn(16, len(_ROWS), _DIM, generator=torch.Generator().manual_seed(5))
    assert client.push(ticket, grad, _RATE, None) is None
    client.flush()
    rounded = _rows(loaded)
    loaded.load(shard_specs(_PIECES, _ROWS, _DIM, "exact_sgd"))
    exact = _client(loaded, transport)
    ticket = exact.lookup(batch)
    exact.pooled(ticket, out)
    exact.push(ticket, grad.bfloat16().float(), _RATE, None)
    exact.flush()
    for got, wanted, start in zip(rounded, _rows(loaded), before, strict=True):
        np.testing.assert_array_equal(got, wanted)  # float32 rows, float32 arithmetic
        assert (got != start).any()


@pytest.mark.parametrize("transport", ["slab", "object"])
def test_a_multi_hot_burst_gets_the_room_it_needs(loaded: ShardService, transport: str) -> None:
    client, tables = _client(loaded, transport, lookahead=1), _whole_tables()
    for step, most in enumerate([1, 40, 2, 90, None, 0, 90, 90, 90, 90]):
        batch = _batch(step, most=most)
        torch.testing.assert_close(_pooled(client, batch), _expected(tables, batch), atol=2e-6, rtol=0)


def test_slots_grow_once_and_are_used_again(loaded: ShardService) -> None:
    """The keeper's memory stops growing when every slot has met the largest request."""
    from services.memory.descriptors import request

    client = _client(loaded, "slab")

    def held() -> int:
        return len(request(loaded.keeper_name, {"op": "list"})[0]["regions"])

    few = held()
    for step in range(6):
        _pooled(client, _batch(step, most=90))
    grown = held()
    assert grown > few
    for step in range(12):
        _pooled(client, _batch(step, most=90))
    assert held() == grown


@pytest.mark.parametrize("transport", ["slab", "object"])
@pytest.mark.parametrize("lookahead", [0, 2])
def test_lookahead_lookups_stay_in_flight_and_pushes_are_acknowledged_in_order(
    loaded: ShardService, transport: str, lookahead: int
) -> None:
    client = _client(loaded, transport, lookahead=lookahead)
    batches = [_batch(step) for step in range(12)]
    tickets = [client.lookup(batch) for batch in batches[: lookahead + 1]]
    waiting, out = batches[lookahead + 1 :], torch.empty(16, len(_ROWS), _DIM)
    for batch in batches[: -lookahead - 1]:
        ticket = tickets.pop(0)
        assert ticket.batch is batch
        client.pooled(ticket, out)
        following = client.push(ticket, out, _RATE, waiting.pop(0))
        assert following is not None
        tickets.append(following)
    for ticket in tickets:
        client.discard(ticket)  # a run that is stopped here: what was pushed is still acknowledged
    client.flush()
    acknowledged = client.take_acknowledged()
    assert [id(batch) for batch in acknowledged] == [id(batch) for batch in batches[: -lookahead - 1]]
    assert client.take_acknowledged() == []
    import ray

    count = len(acknowledged)
    for shard in loaded.shards:
        stats = ray.get(shard.stats.remote())
        assert (stats["pushes"], stats["samples"], stats["lookups"]) == (count, 16 * count, 12)


def _line(service: ShardService, transport: str, trainer: Address, shard_generation: int = 1) -> ShardLine:
    """A line to shard 1, which holds tables ``sex`` and ``user`` in part."""
    target = service.targets(transport)[1]
    spec = LineSpec(pieces=2, dim=16, batch=16, ids=32, slots=2, wire="fp32")
    sender = Sender(trainer.index, trainer.generation, 0, shard_generation)
    if transport == "slab":
        return SlabLine(trainer, 0, target, spec, sender)
    return ObjectLine(target, spec, sender)


def _ids(*ids: int) -> RoutedIds:
    return RoutedIds([torch.tensor(ids)], None, len(ids))


@pytest.mark.parametrize("transport", ["slab", "object"])
def test_a_push_sent_twice_is_applied_once(loaded: ShardService, transport: str) -> None:
    import ray

    trainer = loaded.next_trainer()
    line, number = _line(loaded, transport, trainer), (trainer.generation << 40) + 1
    request = line.request(_ids(0, 2, 5, 29), 2)
    request.grad_area().fill_(1.0)
    start = _rows(loaded)[1]
    line.wait(line.send(request, number, _RATE, None))
    once = _rows(loaded)[1]
    assert (once != start).sum() == 4 * _DIM
    line.wait(line.send(request, number, _RATE, None))
    np.testing.assert_array_equal(_rows(loaded)[1], once)
    assert ray.get(loaded.shards[1].last_applied.remote(0)) == number


@pytest.mark.parametrize("transport", ["slab", "object"])
def test_a_bad_id_comes_back_as_an_error_that_names_the_table(loaded: ShardService, transport: str) -> None:

    line = _line(loaded, transport, loaded.next_trainer())
    request = line.request(_ids(0, 2, 30, 29), 2)
    with pytest.raises(IdRangeError, match=r"table 'user': 1 ids outside piece user\[70:100, 0:8\] of 30 rows"):
        line.wait(line.send(None, 0, 0.0, request))
    request.grad_area().fill_(1.0)
    before = _rows(loaded)[1]
    with pytest.raises(IdRangeError, match="table 'user'"):
        line.wait(line.send(request, 1 << 60, _RATE, None))
    np.testing.assert_array_equal(_rows(loaded)[1], before)


@pytest.mark.parametrize("transport", ["slab", "object"])
def test_an_older_trainer_is_refused_once_its_successor_is_known(loaded: ShardService, transport: str) -> None:
    import ray

    old = _line(loaded, transport, former := loaded.next_trainer())
    request = old.request(_ids(0, 1, 2, 3), 2)
    old.wait(old.send(None, 0, 0.0, request))
    new = _line(loaded, transport, trainer := loaded.next_trainer())
    new.wait(new.send(None, 0, 0.0, new.request(_ids(0, 1, 2, 3), 2)))
    request.grad_area().fill_(1.0)
    before = _rows(loaded)[1]
    says = f"trainer 0 carries generation {former.generation}, the current one is {trainer.generation}"
    with pytest.raises(StaleGenerationError, match=says):
        old.wait(old.send(request, 1 << 60, _RATE, None))
    np.testing.assert_array_equal(_rows(loaded)[1], before)
    if transport == "slab":
        with pytest.raises(StaleGenerationError, match=says):
            ray.get(loaded.shards[1].attach_slab.remote(former, 9, f"{former}/slab-9"))


def test_a_slab_of_an_older_trainer_is_not_attached(loaded: ShardService) -> None:
    """A successor that names its predecessor's slab, or a slot that the predecessor wrote last."""
    import ray

    former, trainer = loaded.next_trainer(), loaded.next_trainer()
    slab = create_slab(
        loaded.keeper_name, f"{former}/slab-9", former, slots=1, batch=16, ids=32, pieces=2, dim=16, wire="fp32"
    )
    with pytest.raises(StaleGenerationError, match=f"slab {former}/slab-9 carries generation {former.generation}"):
        ray.get(loaded.shards[1].attach_slab.remote(trainer, 9, f"{former}/slab-9"))
    assert slab.generation == former.generation

    line = _line(loaded, "slab", trainer)
    request = line.request(_ids(0, 1, 2, 3), 2)
    request.slot.prepare(former.generation, 2, 4, unit=True)
    with pytest.raises(StaleGenerationError, match="a slab slot"):
        line.wait(line.send(None, 0, 0.0, request))


@pytest.mark.parametrize("transport", ["slab", "object"])
def test_a_call_meant_for_another_incarnation_of_the_shard_is_refused(loaded: ShardService, transport: str) -> None:

    line = _line(loaded, transport, loaded.next_trainer(), shard_generation=2)
    with pytest.raises(StaleGenerationError, match="call to shard 1 carries generation 2, the current one is 1"):
        line.wait(line.send(None, 0, 0.0, line.request(_ids(0, 1, 2, 3), 2)))


def test_more_requests_than_slots_are_refused(loaded: ShardService) -> None:
    line = _line(loaded, "slab", loaded.next_trainer())
    for _ in range(2):
        line.request(_ids(0, 1, 2, 3), 2)
    with pytest.raises(RuntimeError, match=r"all 2 slab slots to shard-1\.g1 are in flight"):
        line.request(_ids(0, 1, 2, 3), 2)


@pytest.mark.parametrize("transport", ["slab", "object"])
def test_a_shard_that_dies_is_named_to_the_trainer(loaded: ShardService, transport: str) -> None:
    import ray

    mortal = loaded.start(Address("shard", 7, 1))
    whole = {"site": 60}
    spec = shard_specs([(Piece("site", 0, 60, 0, 8),)], whole, _DIM, "exact_sgd")[0]
    process, _ = ray.get(mortal.load.remote(spec))
    target = ShardTarget(Address("shard", 7, 1), mortal, loaded.keeper_name if transport == "slab" else None)
    client = ShardedEmbeddingClient(
        loaded.next_trainer(),
        0,
        0,
        Router(["site"], whole, _DIM, [spec.pieces]),
        [target],
        batch=4,
        lookahead=0,
        wire="fp32",
    )
    batch = Batch(torch.zeros(4, 0), torch.zeros(4), torch.tensor([1, 2, 3, 4]), None, spans=())
    out = torch.empty(4, 1, _DIM)
    ticket = client.lookup(batch)
    client.pooled(ticket, out)
    os.kill(process[0], 9)
    following = client.push(ticket, out, _RATE, batch)
    assert following is not None
    with pytest.raises(
        ShardUnavailableError, match=r"shard-7\.g1 is unavailable: (its process has ended|ActorDiedError)"
    ) as death:
        client.pooled(following, out)
    assert death.value.shard == Address("shard", 7, 1)
    assert client.take_acknowledged() == []


def _distinct(size: int = 16) -> Batch:
    """Each sample another row of ``site`` and ``user``."""
    ids = torch.cat([torch.arange(size), torch.arange(size), torch.arange(size) % 3])
    return Batch(torch.zeros(size, 0), torch.zeros(size), ids, None, spans=())


@pytest.mark.parametrize("transport", ["slab", "object"])
def test_small_gradients_survive_an_fp16_wire_and_large_ones_stay_finite(loaded: ShardService, transport: str) -> None:
    """3e-6 has six significant bits in FP16; scaled by the batch size it has ten."""
    client, batch = _client(loaded, transport, wire="fp16"), _distinct()
    ticket, pooled = client.lookup(batch), torch.empty(16, 3, _DIM)
    client.pooled(ticket, pooled)
    before = torch.from_numpy(_rows(loaded)[0])[: 16 * _DIM].view(16, _DIM)
    torch.testing.assert_close(pooled[:, 0], before, rtol=2**-11, atol=1e-6)
    grad = torch.rand(16, 3, _DIM, generator=torch.Generator().manual_seed(1)) * 2e-6 + 3e-6
    expected = 1e4 * grad[:, 0].clone()
    client.push(ticket, grad, 1e4, None)
    client.flush()
    after = torch.from_numpy(_rows(loaded)[0])[: 16 * _DIM].view(16, _DIM)
    torch.testing.assert_close(before - after, expected, rtol=1e-3, atol=0)

    ticket = client.lookup(batch)
    client.pooled(ticket, pooled)
    client.push(ticket, torch.full((16, 3, _DIM), 1e6), _RATE, None)
    client.flush()
    assert all(np.isfinite(rows).all() for rows in _rows(loaded))


def test_object_ids_travel_in_32_bits_unless_one_does_not_fit() -> None:
    ids = torch.tensor([0, 5, 2**31 - 1])
    assert narrow_ids(ids).dtype == torch.int32
    assert torch.equal(narrow_ids(ids).long(), ids)
    assert narrow_ids(torch.empty(0, dtype=torch.int64)).numel() == 0
    for bad in (-1, 2**31, 2**40):  # 2**40 would become 0
        assert torch.equal(narrow_ids(torch.tensor([1, bad])), torch.tensor([1, bad]))


def test_slabs_have_room_for_weights_only_once_weights_come(loaded: ShardService) -> None:
    line = _line(loaded, "slab", loaded.next_trainer())
    plain = line.request(_ids(0, 1, 2, 3), 2)
    assert not plain.slot.holds_weights and plain.slot.weights is None
    line.release(plain)
    weights = torch.tensor([0.5, 1.0, 2.0, 4.0])
    weighted = line.request(RoutedIds([torch.tensor([0, 1, 2, 3])], None, 4, [weights]), 2)
    assert torch.equal(weighted.slot.weights, weights)
    line.release(weighted)
    again = line.request(_ids(0, 1, 2, 3), 2)  # the same slot, for a batch without weights
    assert again.slot.holds_weights and again.slot.weights is None


@pytest.mark.parametrize("transport", ["slab", "object"])
def test_weighted_rows_are_torchs_weighted_bags(loaded: ShardService, transport: str) -> None:
    client, batch = _client(loaded, transport), _batch(5, most=3)
    batch.weights = torch.rand(batch.values.numel(), generator=torch.Generator().manual_seed(3)) * 2
    offsets, columns = batch.offsets(len(_ROWS)), []
    for feature, table in enumerate(_whole_tables()):
        own = offsets[feature * 16 : (feature + 1) * 16 + 1]
        columns.append(
            torch.nn.functional.embedding_bag(
                batch.values[own[0] : own[-1]],
                table,
                own - own[0],
                mode="sum",
                include_last_offset=True,
                per_sample_weights=batch.weights[own[0] : own[-1]],
            )
        )
    torch.testing.assert_close(_pooled(client, batch), torch.stack(columns, dim=1), rtol=0, atol=1e-6)
    batch.weights = batch.weights[1:]
    with pytest.raises(ValueError, match=r"the batch has \d+ ids, but \d+ weights"):
        client.lookup(batch)
