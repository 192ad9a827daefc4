"""Which ids go to which shard, and where a shard's pooled columns belong in the batch's B×F×D."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from checkpoint.piece import Piece
from services.shard.tbe import IdRangeError
from trainer.data.batch import Batch


@dataclass(slots=True)
class RoutedIds:
    """The ids of one batch for one shard: parts in piece order, and their lengths (``None``: one id everywhere)."""

    parts: list[Tensor]
    lengths: list[Tensor] | None
    count: int

    def write(self, ids: Tensor, offsets: Tensor) -> None:
        """Write into the request: ids L and, unless one id everywhere, offsets T·B+1."""
        torch.cat(self.parts, out=ids)
        if self.lengths is not None:
            offsets[0] = 0
            torch.cumsum(torch.cat(self.lengths), 0, out=offsets[1:])


def order_pieces(pieces: Sequence[Piece], tables: Sequence[str], table_rows: Mapping[str, int]) -> tuple[Piece, ...]:
    """The order in which a shard keeps its pieces: whole-row-range pieces first, then row ranges, each by table."""
    index = {table: position for position, table in enumerate(tables)}
    return tuple(
        sorted(pieces, key=lambda p: (p.rows != table_rows[p.table], index[p.table], p.row_start, p.col_start))
    )


class ShardRoute:
    """One shard's part: which features it sees whole, which by row range, and its columns."""

    def __init__(self, pieces: Sequence[Piece], tables: Sequence[str], rows: Mapping[str, int], dim: int) -> None:
        index = {table: position for position, table in enumerate(tables)}
        self.pieces = tuple(pieces)
        self.total_dim = sum(piece.dim for piece in self.pieces)
        self.whole = [index[p.table] for p in self.pieces if p.rows == rows[p.table]]
        self.partial = [(index[p.table], p.row_start) for p in self.pieces if p.rows != rows[p.table]]
        self.whole_index = torch.tensor(self.whole, dtype=torch.int64)
        self.feature_index = torch.tensor([index[p.table] for p in self.pieces], dtype=torch.int64)
        self.full_columns = all(piece.dim == dim for piece in self.pieces)
        self.columns: list[tuple[int, int, int]] = []  # (first column in B×(F·D), first column here, width)
        here = 0
        for piece in self.pieces:
            self.columns.append((index[piece.table] * dim + piece.col_start, here, piece.dim))
            here += piece.dim


class Router:
    """Splits batches over shards and puts pooled answers together. Stateless after construction; thread-safe."""

    def __init__(
        self, tables: Sequence[str], rows: Mapping[str, int], dim: int, shards: Sequence[Sequence[Piece]]
    ) -> None:
        """``shards[i]`` are shard i's pieces in the order of ``order_pieces``; every table has width ``dim``."""
        self.tables, self.dim = tuple(tables), dim
        self.routes = [ShardRoute(pieces, tables, rows, dim) for pieces in shards]
        self._rows = [rows[table] for table in tables]
        self._blocks = _row_wise_blocks(tables, shards, self._rows)
        self._row_wise = sorted({feature for route in self.routes for feature, _ in route.partial})
        self._bucket_size = torch.tensor([self._blocks[f] for f in self._row_wise], dtype=torch.int64)
        self._first_shard: dict[int, int] = {}  # row-wise feature → the shard that writes (others add)
        for shard_id, route in enumerate(self.routes):
            for feature, _ in route.partial:
                self._first_shard.setdefault(feature, shard_id)

    def route(self, batch: Batch) -> list[RoutedIds]:
        """Piece-local ids of every shard.

        Raises:
            IdRangeError: an id of a row-wise table lies outside the table.
        """
        size, features = batch.size, len(self.tables)
        if batch.lengths is None and not self._row_wise:
            ids = batch.values.view(features, size)
            return [
                RoutedIds([ids.index_select(0, route.whole_index).view(-1)], None, len(route.whole) * size)
                for route in self.routes
            ]
        return self._route_general(batch, size)

    def _route_general(self, batch: Batch, size: int) -> list[RoutedIds]:
        lengths = batch.lengths
        if lengths is None:
            lengths = torch.ones(len(self.tables) * size, dtype=torch.int64)
        lengths = lengths.view(len(self.tables), size)
        bounds = [0, *torch.cumsum(lengths.sum(1), 0).tolist()]
        by_feature = [batch.values[bounds[f] : bounds[f + 1]] for f in range(len(self.tables))]
        bucket_ids, bucket_lengths = self._bucketize(by_feature, lengths, size)
        routed = []
        for route in self.routes:
            parts = [by_feature[feature] for feature in route.whole]
            part_lengths = [lengths[feature] for feature in route.whole]
            for feature, row_start in route.partial:
                key = (feature, row_start // self._blocks[feature])
                parts.append(bucket_ids[key])
                part_lengths.append(bucket_lengths[key])
            routed.append(RoutedIds(parts, part_lengths, sum(part.numel() for part in parts)))
        return routed

    def _bucketize(
        self, by_feature: list[Tensor], lengths: Tensor, size: int
    ) -> tuple[dict[tuple[int, int], Tensor], dict[tuple[int, int], Tensor]]:
        """Ids and lengths of every (row-wise feature, block), block-local (fbgemm's bucketize op)."""
        ids: dict[tuple[int, int], Tensor] = {}
        counts: dict[tuple[int, int], Tensor] = {}
        if not self._row_wise:
            return ids, counts
        for feature in self._row_wise:  # the op would silently move an id past the last block to another row
            own = by_feature[feature]
            if own.numel() and (int(own.min()) < 0 or int(own.max()) >= self._rows[feature]):
                raise IdRangeError(
                    f"table {self.tables[feature]!r}: ids {int(own.min())}…{int(own.max())} do not fit its "
                    f"{self._rows[feature]} rows; the encoder and the placement disagree on the table's rows"
                )
        buckets = max(-(-self._rows[f] // self._blocks[f]) for f in self._row_wise)
        new_lengths, new_ids, *_ = torch.ops.fbgemm.block_bucketize_sparse_features(
            lengths[self._row_wise].reshape(-1),
            torch.cat([by_feature[f] for f in self._row_wise]),
            False,
            False,
            self._bucket_size,
            buckets,
        )
        new_lengths = new_lengths.view(buckets * len(self._row_wise), size)
        bounds = [0, *torch.cumsum(new_lengths.sum(1), 0).tolist()]
        for bucket in range(buckets):
            for position, feature in enumerate(self._row_wise):
                chunk = bucket * len(self._row_wise) + position
                ids[feature, bucket] = new_ids[bounds[chunk] : bounds[chunk + 1]]
                counts[feature, bucket] = new_lengths[chunk]
        return ids, counts

    def gather(self, shard_id: int, pooled: Tensor, out: Tensor) -> None:
        """Put a shard's pooled B×ΣD into ``out`` B×F×D; partial sums of row-wise tables add up.

        Call it for shard 0, 1, … in order: the first shard of a row-wise table writes, the others add.
        """
        route = self.routes[shard_id]
        if not route.partial and route.full_columns:
            out.index_copy_(1, route.whole_index, pooled.view(out.shape[0], -1, self.dim).to(out.dtype))
            return
        flat = out.view(out.shape[0], -1)
        for position, (to, here, width) in enumerate(route.columns):
            target, source = flat[:, to : to + width], pooled[:, here : here + width]
            partial = position >= len(route.whole)
            if partial and self._first_shard[route.partial[position - len(route.whole)][0]] != shard_id:
                target.add_(source)
            else:
                target.copy_(source)

    def scatter(self, shard_id: int, grad: Tensor, out: Tensor) -> None:
        """Put the columns of ``grad`` B×F×D that a shard owns into ``out`` B×ΣD (its number format)."""
        route = self.routes[shard_id]
        if route.full_columns and out.dtype == grad.dtype:
            torch.index_select(grad, 1, route.feature_index, out=out.view(grad.shape[0], -1, self.dim))
        elif route.full_columns:
            out.view(grad.shape[0], -1, self.dim).copy_(grad.index_select(1, route.feature_index))
        else:
            flat = grad.reshape(grad.shape[0], -1)
            for to, here, width in route.columns:
                out[:, here : here + width].copy_(flat[:, to : to + width])


def _row_wise_blocks(tables: Sequence[str], shards: Sequence[Sequence[Piece]], rows: Sequence[int]) -> dict[int, int]:
    """Block size of every row-wise table: its pieces must be equal row ranges but for the last."""
    blocks: dict[int, int] = {}
    for feature, table in enumerate(tables):
        cuts = sorted({(p.row_start, p.row_end) for pieces in shards for p in pieces if p.table == table})
        if not cuts or cuts[0][0] != 0 or cuts[-1][1] != rows[feature]:
            raise ValueError(f"table {table!r}: pieces {cuts} do not cover its {rows[feature]} rows")
        size = cuts[0][1]
        for position, (start, end) in enumerate(cuts):
            if start != position * size or (end != start + size and end != rows[feature]):
                raise ValueError(f"table {table!r}: row ranges {cuts} are not equal blocks")
        if len(cuts) > 1:
            blocks[feature] = size
    return blocks
