"""Tables, pieces and whole saves for the tests, and an independent way to read them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from checkpoint.buffers import BufferPool
from checkpoint.encodings import decode
from checkpoint.manifest import Manifest, TableSpec
from checkpoint.piece import Piece
from checkpoint.piece_rows import PieceRows, state_shapes
from checkpoint.retry import RetryPolicy
from checkpoint.shard_save import ShardSave
from checkpoint.store import CheckpointStore
from checkpoint.writer import ShardWriter

FAST = RetryPolicy(attempts=3, first_delay_s=0.001, max_delay_s=0.002)

TABLES = {
    "user": TableSpec(rows=5000, dim=16, dtype="fp32", optimizer="exact_row_wise_adagrad"),
    "item": TableSpec(rows=301, dim=5, dtype="fp32", optimizer="exact_adagrad"),
    "tiny": TableSpec(rows=3, dim=8, dtype="fp32", optimizer="exact_sgd"),
}

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


def whole(tables: Mapping[str, TableSpec], seed: int) -> list[PieceRows]:
    """Every table as one piece, with random contents."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for name, spec in tables.items():
        piece = Piece(name, 0, spec.rows, 0, spec.dim)
        weights = torch.randn(spec.rows, spec.dim, generator=generator).to(DTYPES[spec.dtype])
        states = {
            key: torch.rand(shape, generator=generator) for key, shape in state_shapes(spec.optimizer, piece).items()
        }
        found.append(PieceRows(piece, weights, states))
    return found


def cut_rows(
    rows: PieceRows, row_start: int, row_end: int, col_start: int = 0, col_end: int | None = None
) -> PieceRows:
    """A copy of part of a whole table."""
    end = rows.piece.dim if col_end is None else col_end
    piece = Piece(rows.piece.table, row_start, row_end, col_start, end)
    states = {
        name: (state[row_start:row_end, col_start:end] if state.dim() == 2 else state[row_start:row_end]).clone()
        for name, state in rows.states.items()
    }
    return PieceRows(piece, rows.weights[row_start:row_end, col_start:end].clone(), states)


def copy_of(pieces: Sequence[PieceRows]) -> list[PieceRows]:
    """Deep copies."""
    return [PieceRows(p.piece, p.weights.clone(), {k: v.clone() for k, v in p.states.items()}) for p in pieces]


def small_writer(count: int = 4, buffer_bytes: int = 16384, **kwargs: Any) -> ShardWriter:
    """A writer whose buffers are small, so that tensors straddle them."""
    return ShardWriter(BufferPool(count, buffer_bytes), retry=FAST, **kwargs)


def save_all(
    store: CheckpointStore,
    pieces: Sequence[PieceRows],
    writer: ShardWriter,
    *,
    kind: Any = "full",
    parent: str | None = None,
    selections: Mapping[int, Tensor | None] | None = None,
    encoding: Any = "fp32",
    timeline: int = 0,
    consistent: bool = False,
    samples: int = 0,
    tables: Mapping[str, TableSpec] = TABLES,
    **kwargs: Any,
) -> Manifest:
    """One shard that owns all pieces saves them."""
    ticket = store.begin(kind, timeline=timeline, samples=samples, consistent=consistent, tables=tables, parent=parent)
    save = ShardSave(ticket, 0, pieces, selections or {}, encoding, writer, chunk_bytes=8192, **kwargs)
    return store.commit(ticket, save.finish(timeout_s=60))


def read_back(root: Path, manifest: Manifest, into: Sequence[PieceRows]) -> None:
    """Read a local save with the safetensors library into whole tables."""
    tables = {piece.piece.table: piece for piece in into}
    for file in manifest.files:
        tensors = load_file(root / "saves" / manifest.save_id / file.path)
        for segment in file.segments:
            rows = tables[segment.table]
            ids = tensors.get(f"{segment.prefix}.ids", torch.arange(segment.row_start, segment.row_end))
            assert ids.numel() == segment.rows
            columns = slice(segment.col_start, segment.col_end)
            dim = segment.col_end - segment.col_start
            rows.weights[ids, columns] = decode(tensors[f"{segment.prefix}.weight"], segment.encoding, dim).to(
                rows.weights.dtype
            )
            for name, state in rows.states.items():
                part = tensors[f"{segment.prefix}.state.{name}"]
                if state.dim() == 2:
                    state[ids, columns] = part
                else:
                    state[ids] = part


def assert_equal(found: Sequence[PieceRows], expected: Sequence[PieceRows]) -> None:
    """Bitwise."""
    for one, other in zip(found, expected, strict=True):
        assert one.piece == other.piece
        assert torch.equal(one.weights, other.weights), one.piece
        for name, state in other.states.items():
            assert torch.equal(one.states[name], state), (one.piece, name)
