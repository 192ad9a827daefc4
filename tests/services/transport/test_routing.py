"""Routing: every id reaches exactly the piece that owns its row, and the answers come back to the right columns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from checkpoint.piece import Piece
from services.placement.planner import plan_placement
from services.placement.tables import TableSpec
from services.shard.tbe import IdRangeError
from services.transport.routing import Router, order_pieces
from trainer.config import EmbeddingConfig
from trainer.data.batch import Batch

_DIM = 8


@dataclass
class _Case:
    rows: dict[str, int]
    shards: list[list[Piece]]
    bags: list[list[list[int]]]
    """By feature, then by sample: global ids."""
    one_hot: bool

    @property
    def router(self) -> Router:
        return Router(list(self.rows), self.rows, _DIM, self.shards)

    @property
    def batch(self) -> Batch:
        lengths = None if self.one_hot else torch.tensor([len(bag) for feature in self.bags for bag in feature])
        return _batch([row for feature in self.bags for bag in feature for row in bag], lengths, len(self.bags[0]))


def _batch(ids: list[int], lengths: Tensor | None, size: int) -> Batch:
    values = torch.tensor(ids, dtype=torch.int64)
    return Batch(torch.zeros(size, 0), torch.zeros(size), values, lengths, spans=())


@st.composite
def _cases(draw: st.DrawFn) -> _Case:
    rows = {f"t{index}": draw(st.integers(1, 40)) for index in range(draw(st.integers(1, 5)))}
    shards: list[list[Piece]] = [[] for _ in range(draw(st.integers(1, 4)))]
    for table, count in rows.items():
        for columns in pairwise(draw(st.sampled_from([(0, 8), (0, 8), (0, 4, 8)]))):
            inner = draw(st.sets(st.integers(1, count - 1), max_size=4)) if count > 1 and draw(st.booleans()) else set()
            for cut in pairwise([0, *sorted(inner), count]):
                draw(st.sampled_from(shards)).append(Piece(table, *cut, *columns))
    ordered = [list(order_pieces(pieces, list(rows), rows)) for pieces in shards]
    size, one_hot = draw(st.integers(1, 6)), draw(st.booleans())
    bags = [
        [
            draw(st.lists(st.integers(0, count - 1), min_size=int(one_hot), max_size=1 if one_hot else 4))
            for _ in range(size)
        ]
        for count in rows.values()
    ]
    return _Case(rows, ordered, bags, one_hot)


def _routed(case: _Case) -> list[tuple[list[int], list[int]]]:
    """Ids and offsets that each shard gets."""
    size, found = len(case.bags[0]), []
    for pieces, routed in zip(case.shards, case.router.route(case.batch), strict=True):
        ids = torch.empty(routed.count, dtype=torch.int64)
        offsets = torch.arange(len(pieces) * size + 1)  # what unit requests mean
        if pieces:  # one that owns nothing is not asked
            routed.write(ids, offsets)
        found.append((ids.tolist(), offsets.tolist()))
    return found


@given(_cases())
@settings(deadline=None)
def test_every_id_reaches_the_piece_that_owns_it(case: _Case) -> None:
    features = dict(zip(case.rows, case.bags, strict=True))
    for pieces, (ids, offsets) in zip(case.shards, _routed(case), strict=True):
        expected, edges = [], [0]
        for piece in pieces:
            for bag in features[piece.table]:
                expected += [row - piece.row_start for row in bag if piece.row_start <= row < piece.row_end]
                edges.append(len(expected))
        assert (ids, offsets) == (expected, edges)


@given(_cases())
@settings(deadline=None)
def test_every_weight_goes_with_its_id(case: _Case) -> None:
    batch = case.batch
    batch.weights = torch.arange(batch.values.numel()).float() + 0.5
    numbers = iter(batch.weights.tolist())
    pairs = {
        table: [(row, next(numbers)) for bag in bags for row in bag]
        for table, bags in zip(case.rows, case.bags, strict=True)
    }
    for pieces, routed in zip(case.shards, case.router.route(batch), strict=True):
        if not pieces:
            continue
        ids, weights = torch.empty(routed.count, dtype=torch.int64), torch.empty(routed.count)
        routed.write(ids, torch.empty(len(pieces) * batch.size + 1, dtype=torch.int64), weights)
        expected = [
            (row - piece.row_start, weight)
            for piece in pieces
            for row, weight in pairs[piece.table]
            if piece.row_start <= row < piece.row_end
        ]
        assert list(zip(ids.tolist(), weights.tolist(), strict=True)) == expected


@given(st.data())
@settings(deadline=None)
def test_columns_of_tables_of_several_widths_come_back_where_they_were(data: st.DataObject) -> None:
    dims = {f"t{index}": data.draw(st.sampled_from([4, 8, 20])) for index in range(data.draw(st.integers(1, 5)))}
    shards: list[list[Piece]] = [[] for _ in range(data.draw(st.integers(1, 3)))]
    for table, dim in dims.items():
        for columns in pairwise(data.draw(st.sampled_from([(0, dim), (0, 4, dim) if dim > 4 else (0, dim)]))):
            data.draw(st.sampled_from(shards)).append(Piece(table, 0, 10, *columns))
    rows = dict.fromkeys(dims, 10)
    router = Router(list(dims), rows, dims, [order_pieces(pieces, list(dims), rows) for pieces in shards])
    grad = torch.randn(3, sum(dims.values()))
    if len(set(dims.values())) == 1:
        grad = grad.view(3, len(dims), -1)
    back, starts = torch.full_like(grad, torch.nan), dict(zip(dims, accumulate([0, *dims.values()]), strict=False))
    for shard_id, route in enumerate(router.routes):
        out = torch.empty(3, route.total_dim)
        router.scatter(shard_id, grad, out)
        expected = [
            grad.flatten(1)[:, starts[piece.table] + piece.col_start : starts[piece.table] + piece.col_end]
            for piece in route.pieces
        ]
        assert torch.equal(out, torch.cat([grad.flatten(1)[:, :0], *expected], 1))
        router.gather(shard_id, out, back)
    assert torch.equal(back, grad)


@given(_cases(), st.sampled_from([torch.float32, torch.bfloat16]))
@settings(deadline=None)
def test_pooled_rows_of_all_shards_together_are_those_of_whole_tables(case: _Case, wire: torch.dtype) -> None:
    """With small whole numbers as weights sums are exact, in either number format and in any order."""
    weights = {
        table: (torch.arange(count * _DIM).view(count, _DIM) * 7 + 3 * index) % 13 - 6.0
        for index, (table, count) in enumerate(case.rows.items())
    }
    size = len(case.bags[0])
    out = torch.full((size, len(case.rows), _DIM), torch.nan)
    for shard_id, (pieces, (ids, offsets)) in enumerate(zip(case.shards, _routed(case), strict=True)):
        pooled = torch.zeros(size, sum(piece.dim for piece in pieces))
        here = 0
        for position, piece in enumerate(pieces):
            table = weights[piece.table][piece.row_start : piece.row_end, piece.col_start : piece.col_end]
            for sample in range(size):
                start, end = offsets[position * size + sample], offsets[position * size + sample + 1]
                pooled[sample, here : here + piece.dim] = table[ids[start:end]].sum(0)
            here += piece.dim
        case.router.gather(shard_id, pooled.to(wire), out)
    expected = torch.stack(
        [
            torch.stack([weights[table][bag].sum(0) for bag in bags])
            for table, bags in zip(case.rows, case.bags, strict=True)
        ],
        dim=1,
    )
    assert torch.equal(out, expected)


@given(_cases(), st.sampled_from([torch.float32, torch.bfloat16]))
@settings(deadline=None)
def test_every_piece_gets_the_gradient_of_its_columns(case: _Case, wire: torch.dtype) -> None:
    size, tables = len(case.bags[0]), list(case.rows)
    grad = torch.randn(size, len(tables), _DIM, generator=torch.Generator().manual_seed(size))
    router = case.router
    for shard_id, pieces in enumerate(case.shards):
        out = torch.full((size, router.routes[shard_id].total_dim), torch.nan, dtype=wire)
        router.scatter(shard_id, grad, out)
        expected = [grad[:, tables.index(piece.table), piece.col_start : piece.col_end] for piece in pieces]
        assert torch.equal(out, torch.cat([grad[:, 0, :0], *expected], 1).to(wire))


@given(_cases())
@settings(deadline=None)
def test_gathering_what_was_scattered_gives_it_back(case: _Case) -> None:
    size = len(case.bags[0])
    grad = torch.randint(-8, 8, (size, len(case.rows), _DIM), generator=torch.Generator().manual_seed(size)).float()
    router, back, pieces_of = case.router, torch.full_like(grad, torch.nan), torch.zeros(len(case.rows), _DIM)
    for shard_id, pieces in enumerate(case.shards):
        out = torch.empty(size, router.routes[shard_id].total_dim)
        router.scatter(shard_id, grad, out)
        router.gather(shard_id, out, back)
        for piece in pieces:
            pieces_of[list(case.rows).index(piece.table), piece.col_start : piece.col_end] += 1
    assert torch.equal(back, grad * pieces_of)  # every row range of a table gets, and gives back, the whole gradient


def test_the_planners_unequal_row_ranges_are_routed() -> None:
    """Nodes with unequal budgets: TorchRec splits rows in proportion to them."""
    rows = {"large": 1000, "small": 7}
    placement = plan_placement(
        [TableSpec(table, count, _DIM) for table, count in rows.items()],
        EmbeddingConfig.model_validate({"tables": {"large": {"sharding": "row_wise"}}}),
        (1, 1),
        (300_000, 100_000),
    )
    shards = [order_pieces(placement.pieces[shard_id], list(rows), rows) for shard_id in (0, 1)]
    cuts = sorted(piece.row_end for pieces in shards for piece in pieces if piece.table == "large")
    assert cuts[0] != 500  # unequal indeed
    router = Router(list(rows), rows, _DIM, shards)
    ids = [0, cuts[0] - 1, cuts[0], 999, 1, 2, 3, 6]
    routed = router.route(_batch(ids, None, 4))
    found = {}
    for pieces, own in zip(shards, routed, strict=True):
        for piece, part in zip(pieces, own.parts, strict=True):
            found[str(piece.table), piece.row_start] = part.tolist()
    assert found["large", 0] == [0, cuts[0] - 1]
    assert found["large", cuts[0]] == [0, 999 - cuts[0]]
    assert found["small", 0] == [1, 2, 3, 6]


@pytest.mark.parametrize("bad", [-1, 10, 2**40])
def test_an_id_outside_a_row_wise_table_is_refused(bad: int) -> None:
    shards = [[Piece("a", 0, 5, 0, 8), Piece("b", 0, 3, 0, 8)], [Piece("b", 3, 10, 0, 8)]]
    router = Router(["a", "b"], {"a": 5, "b": 10}, _DIM, shards)
    with pytest.raises(IdRangeError, match=rf"table 'b': ids .*{bad}.* do not fit its 10 rows"):
        router.route(_batch([0, 4, 9, bad], None, 2))


@pytest.mark.parametrize("lengths", [[1, 1, 1, 1], [2, 0, 2, 1], [0, 0, 0, 0]])
def test_lengths_that_do_not_describe_the_ids_are_refused(lengths: list[int]) -> None:
    router = Router(["a", "b"], {"a": 5, "b": 10}, _DIM, [[Piece("a", 0, 5, 0, 8), Piece("b", 0, 10, 0, 8)]])
    with pytest.raises(ValueError, match=rf"lengths of the batch sum to {sum(lengths)}, but it has 3 ids"):
        router.route(_batch([0, 1, 2], torch.tensor(lengths), 2))


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([Piece("a", 0, 5, 0, 8)], r"row ranges \[\(0, 5\)\] .* do not cover 0…10"),
        ([Piece("a", 0, 5, 0, 8), Piece("a", 6, 10, 0, 8)], "row ranges"),
        ([Piece("a", 0, 6, 0, 8), Piece("a", 5, 10, 0, 8)], "row ranges"),
        ([Piece("a", 0, 10, 0, 8), Piece("a", 0, 10, 0, 8)], "row ranges"),
        ([Piece("a", 0, 11, 0, 8)], "row ranges"),
        ([Piece("a", 0, 10, 0, 4)], r"column ranges \[\(0, 4\)\] .* do not cover 0…8"),
        ([Piece("a", 0, 10, 0, 8), Piece("a", 0, 10, 0, 4)], "column ranges"),
        ([], "column ranges"),
    ],
)
def test_pieces_that_do_not_make_up_their_table_are_refused(pieces: list[Piece], says: str) -> None:
    with pytest.raises(ValueError, match=rf"table 'a': {says}"):
        Router(["a"], {"a": 10}, _DIM, [pieces, []])
