"""Which ids go to which shard, and where a shard's pooled columns belong among the batch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from checkpoint.piece import Piece
from services.shard.tbe import IdRangeError
from services.transport.tiling import Columns, column_runs, row_splits
from trainer.data.batch import Batch


@dataclass(slots=True)
class RoutedIds:
    """The ids of one batch for one shard: parts in piece order, and their lengths (``None``: one id everywhere).

    ``weights``: per-sample weights of the parts, ``None`` when the batch has none.
    """

    parts: list[Tensor]
    lengths: list[Tensor] | None
    count: int
    weights: list[Tensor] | None = None

    def write(self, ids: Tensor, offsets: Tensor, weights: Tensor | None = None) -> None:
        """Write into the request: ids L and, where there are any, offsets T·B+1 and weights L."""
        torch.cat(self.parts, out=ids)
        if self.weights is not None:
            assert weights is not None
            torch.cat(self.weights, out=weights)
        if self.lengths is not None:
            offsets[0] = 0
            torch.cumsum(torch.cat(self.lengths), 0, out=offsets[1:])


def order_pieces(pieces: Sequence[Piece], tables: Sequence[str], table_rows: Mapping[str, int]) -> tuple[Piece, ...]:
    """The order in which a shard keeps its pieces: whole-row-range pieces first, then row ranges, each by table."""
    index = {table: position for position, table in enumerate(tables)}
    return tuple(
        sorted(pieces, key=lambda p: (p.rows != table_rows[p.table], index[p.table], p.row_start, p.col_start))
    )


class _Bags(NamedTuple):
    """The ids of one feature, whole or within a range of rows, their B lengths and, if any, their weights."""

    ids: Tensor
    lengths: Tensor
    weights: Tensor | None


class ShardRoute:
    """One shard's part: where the ids of each piece come from, and where its columns belong."""

    def __init__(self, pieces: Sequence[Piece], features: Sequence[int], blocks: Sequence[int | None]) -> None:
        """``blocks[i]`` numbers the row range of piece i among all of them; ``None`` for a piece with every row."""
        self.pieces, self.features, self.blocks = tuple(pieces), tuple(features), tuple(blocks)
        self.feature_index = torch.tensor(self.features, dtype=torch.int64)
        self.total_dim = sum(piece.dim for piece in self.pieces)


class Router:
    """Splits batches over shards and puts pooled answers together. Stateless after construction; thread-safe."""

    def __init__(
        self,
        tables: Sequence[str],
        rows: Mapping[str, int],
        dim: int | Mapping[str, int],
        shards: Sequence[Sequence[Piece]],
    ) -> None:
        """``shards[i]`` are shard i's pieces in the order in which it keeps them; ``dim`` is D, of all tables or each.

        Raises:
            ValueError: the pieces of a table overlap, or leave rows or columns out.
        """
        self.tables = tuple(tables)
        self.dims = tuple(dim if isinstance(dim, int) else dim[table] for table in tables)
        self._uniform_dim = self.dims[0] if len(set(self.dims)) == 1 else None
        self._rows = [rows[table] for table in tables]
        splits = row_splits(tables, self._rows, self.dims, [piece for pieces in shards for piece in pieces])
        self._split_features = [split.feature for split in splits]
        self._blocks = max((len(split.cuts) - 1 for split in splits), default=0)
        self._block_rows = torch.tensor([split.cuts[1] for split in splits], dtype=torch.int64)
        # Cuts override the block size, at twice the op's time; it wants equally many of every feature.
        self._cuts = (
            None
            if all(split.even for split in splits)
            else [torch.tensor(cuts + cuts[-1:] * (self._blocks + 1 - len(cuts))) for _, cuts in splits]
        )

        index = {table: position for position, table in enumerate(tables)}
        where = {
            (split.feature, start, end): block * len(splits) + position
            for position, split in enumerate(splits)
            for block, (start, end) in enumerate(pairwise(split.cuts))
        }
        starts = [0, *accumulate(self.dims)]
        self.routes = []
        self._columns: list[list[Columns]] = []
        written: set[tuple[str, int]] = set()
        for pieces in shards:
            features = [index[piece.table] for piece in pieces]
            blocks = [
                where.get((feature, piece.row_start, piece.row_end))
                for feature, piece in zip(features, pieces, strict=True)
            ]
            self.routes.append(ShardRoute(pieces, features, blocks))
            self._columns.append(list(column_runs(pieces, features, starts, written)))

    def route(self, batch: Batch) -> list[RoutedIds]:
        """Piece-local ids of every shard.

        Raises:
            IdRangeError: an id of a row-wise table lies outside the table.
            ValueError: the lengths of the batch do not describe its ids.
        """
        size, features = batch.size, len(self.tables)
        weights = batch.weights
        if weights is not None and weights.numel() != batch.values.numel():
            raise ValueError(f"the batch has {batch.values.numel()} ids, but {weights.numel()} weights")
        if batch.lengths is None and not self._split_features:
            ids = batch.values.view(features, size)
            own = None if weights is None else weights.view(features, size)
            return [
                RoutedIds(
                    [ids.index_select(0, route.feature_index).view(-1)],
                    None,
                    len(route.pieces) * size,
                    None if own is None else [own.index_select(0, route.feature_index).view(-1)],
                )
                for route in self.routes
            ]
        lengths = torch.ones(features * size, dtype=torch.int64) if batch.lengths is None else batch.lengths
        return self._route_general(batch.values, lengths.view(features, size), weights)

    def _route_general(self, values: Tensor, lengths: Tensor, weights: Tensor | None) -> list[RoutedIds]:
        bounds = _bounds(lengths)
        if bounds[-1] != values.numel():
            raise ValueError(f"the lengths of the batch sum to {bounds[-1]}, but it has {values.numel()} ids")
        whole = [
            _Bags(values[start:end], lengths[feature], None if weights is None else weights[start:end])
            for feature, (start, end) in enumerate(pairwise(bounds))
        ]
        blocks = self._cut(whole, lengths) if self._split_features else []
        routed = []
        for route in self.routes:
            own = [
                whole[feature] if block is None else blocks[block]
                for feature, block in zip(route.features, route.blocks, strict=True)
            ]
            parts = [bags.ids for bags in own]
            routed.append(
                RoutedIds(
                    parts,
                    [bags.lengths for bags in own],
                    sum(part.numel() for part in parts),
                    None if weights is None else [bags.weights for bags in own if bags.weights is not None],
                )
            )
        return routed

    def _cut(self, whole: list[_Bags], lengths: Tensor) -> list[_Bags]:
        """Block-local bags of every row range: first blocks of all split tables, then second …"""
        split = [whole[feature] for feature in self._split_features]
        for feature, bags in zip(self._split_features, split, strict=True):
            own = bags.ids  # the op would not refuse such an id but return garbage
            if own.numel() and (int(own.min()) < 0 or int(own.max()) >= self._rows[feature]):
                raise IdRangeError(
                    f"table {self.tables[feature]!r}: ids {int(own.min())}…{int(own.max())} do not fit its "
                    f"{self._rows[feature]} rows; the encoder and the placement disagree on the table's rows"
                )
        weights = [bags.weights for bags in split if bags.weights is not None]
        counts, ids, cut_weights, *_ = torch.ops.fbgemm.block_bucketize_sparse_features(
            lengths[self._split_features].view(-1),
            torch.cat([bags.ids for bags in split]),
            False,
            False,
            self._block_rows,
            self._blocks,
            weights=torch.cat(weights) if weights else None,
            block_bucketize_pos=self._cuts,
        )
        counts = counts.view(self._blocks * len(self._split_features), lengths.shape[1])
        return [
            _Bags(ids[start:end], own, cut_weights[start:end] if weights else None)
            for (start, end), own in zip(pairwise(_bounds(counts)), counts, strict=True)
        ]

    def gather(self, shard_id: int, pooled: Tensor, out: Tensor) -> None:
        """Put a shard's pooled B×ΣD into ``out``, B×F×D or B×ΣD of all; partial sums of row-wise tables add up.

        Call it for shard 0, 1, … in order: the first shard of a row-wise table writes, the others add.
        """
        flat = out.flatten(1)
        for to, here, width, writes in self._columns[shard_id]:  # three times as fast as one index_copy_
            target, source = flat[:, to : to + width], pooled[:, here : here + width]
            if writes:
                target.copy_(source)
            else:
                target.add_(source)

    def scatter(self, shard_id: int, grad: Tensor, out: Tensor) -> None:
        """Put the columns of ``grad``, of the pooled rows' shape, that a shard owns into its B×ΣD, ``out``.

        ``out`` may have another number format.
        """
        route, columns, dim = self.routes[shard_id], self._columns[shard_id], self._uniform_dim
        if dim and route.total_dim == len(route.pieces) * dim and 2 * len(columns) > len(route.pieces):
            chosen = out.view(grad.shape[0], -1, dim)
            if out.dtype == grad.dtype:
                torch.index_select(grad, 1, route.feature_index, out=chosen)
            else:
                chosen.copy_(grad.index_select(1, route.feature_index))
            return
        flat = grad.flatten(1)
        for to, here, width, _ in columns:  # faster where columns lie side by side
            out[:, here : here + width].copy_(flat[:, to : to + width])


def _bounds(lengths: Tensor) -> list[int]:
    """Where each row of ``lengths`` begins among the ids, and where the last one ends."""
    return [0, *torch.cumsum(lengths.sum(1), 0).tolist()]
