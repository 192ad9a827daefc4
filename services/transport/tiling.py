"""How the pieces of all shards make up the tables: where rows are cut, which columns lie side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from checkpoint.piece import Piece


class Split(NamedTuple):
    """How the rows of one table are cut: ``cuts`` run from 0 to the table's rows, at any distances."""

    feature: int
    cuts: tuple[int, ...]

    @property
    def even(self) -> bool:
        """Whether all blocks but the last, smaller one have the size of the first."""
        size, rows = self.cuts[1], self.cuts[-1]
        blocks = len(self.cuts) - 1
        return blocks == -(-rows // size) and all(cut == block * size for block, cut in enumerate(self.cuts[:-1]))


class Columns(NamedTuple):
    """A run of columns that lie side by side in the batch's pooled rows and in the shard's B×ΣD."""

    batch: int
    shard: int
    width: int
    writes: bool
    """Whether the shard is the first one to put something there; the others add their partial sums."""


def column_runs(
    pieces: Sequence[Piece], features: Sequence[int], starts: Sequence[int], written: set[tuple[str, int]]
) -> Iterator[Columns]:
    """Runs of columns of a shard, merged where possible.

    ``starts[f]`` is the first column of feature f in the batch's pooled rows; ``written`` collects (table, first
    column) over the shards.
    """
    run, here = None, 0
    for piece, feature in zip(pieces, features, strict=True):
        to, key = starts[feature] + piece.col_start, (piece.table, piece.col_start)
        writes = key not in written
        written.add(key)
        if run is not None and run.batch + run.width == to and run.writes == writes:
            run = run._replace(width=run.width + piece.dim)
        else:
            if run is not None:
                yield run
            run = Columns(to, here, piece.dim, writes)
        here += piece.dim
    if run is not None:
        yield run


def row_splits(tables: Sequence[str], rows: Sequence[int], dims: Sequence[int], pieces: Sequence[Piece]) -> list[Split]:
    """The different row cuts of tables that are not whole; every table must be tiled: by columns, then by rows."""
    splits = []
    for feature, table in enumerate(tables):
        by_columns: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for piece in pieces:
            if piece.table == table:
                by_columns.setdefault((piece.col_start, piece.col_end), []).append((piece.row_start, piece.row_end))
        _check_tiling(f"table {table!r}: column", sorted(by_columns), dims[feature])
        for ranges in by_columns.values():
            _check_tiling(f"table {table!r}: row", sorted(ranges), rows[feature])
            split = Split(feature, (0, *sorted(end for _, end in ranges)))
            if len(ranges) > 1 and split not in splits:
                splits.append(split)
    return splits


def _check_tiling(what: str, ranges: Sequence[tuple[int, int]], end: int) -> None:
    edges = [0, *(right for _, right in ranges)]
    if edges[-1] != end or any(left != edge for (left, _), edge in zip(ranges, edges[:-1], strict=True)):
        raise ValueError(f"{what} ranges {list(ranges)} of its pieces do not cover 0…{end} once")
