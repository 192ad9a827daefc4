"""Writes saves by hand, with nothing but the safetensors package: what the format's description allows anyone to do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors.torch import save_file
from torch import Tensor

from checkpoint.manifest import TableSpec
from checkpoint.piece import Piece
from checkpoint.piece_rows import PieceRows, state_shapes


@dataclass
class Rows:
    """A segment to be: rows of ``piece``; with ``ids`` (global) only those."""

    piece: Piece
    weight: Tensor
    states: Mapping[str, Tensor] = field(default_factory=dict)
    ids: Tensor | None = None
    cut: int = 1
    encoding: str = "fp32"


def write_save(
    url: Path,
    save_id: str,
    tables: Mapping[str, TableSpec],
    shards: Sequence[Sequence[Rows]],
    *,
    parent: str | None = None,
    samples: int = 0,
    consistent: bool = True,
    run: str = "r",
    states: Mapping[str, Mapping[str, Tensor]] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    timeline, sequence, kind = save_id.split("-")
    directory = url / "saves" / save_id
    directory.mkdir(parents=True)
    files = []
    for shard_id, shard in enumerate(shards):
        tensors, segments = {}, []
        for index, rows in enumerate(shard):
            prefix = f"{index:04d}"
            tensors[f"{prefix}.weight"] = rows.weight.contiguous().clone()
            tensors |= {f"{prefix}.state.{name}": state.contiguous().clone() for name, state in rows.states.items()}
            if rows.ids is not None:
                tensors[f"{prefix}.ids"] = rows.ids.clone()
            segments.append({
                "prefix": prefix, "table": rows.piece.table, "row_start": rows.piece.row_start,
                "row_end": rows.piece.row_end, "col_start": rows.piece.col_start, "col_end": rows.piece.col_end,
                "rows": rows.weight.shape[0], "sparse": rows.ids is not None, "encoding": rows.encoding,
                "cut": rows.cut,
            })  # fmt: skip
        if segments:
            files.append(
                _write(directory / f"shard-{shard_id:04d}.safetensors", tensors)
                | {"shard_id": shard_id, "segments": segments}
            )
    for name, state in (states or {}).items():
        files.append(_write(directory / f"state-{name.replace('/', '.')}.safetensors", dict(state)) | {"state": name})
    body = json.dumps({
        "format": 1, "save_id": save_id, "run": run, "kind": kind, "consistent": consistent, "timeline": int(timeline),
        "sequence": int(sequence), "parent": parent, "created_unix_s": 1e9 + int(sequence), "samples": samples,
        "tables": {name: spec.model_dump() for name, spec in tables.items()}, "files": files, "extra": extra or {},
    })[:-1]  # fmt: skip
    seal = f',"checksum":"xxh3_128:{xxhash.xxh3_128_hexdigest(body.encode())}"}}\n'
    (directory / "manifest.json").write_text(body + seal)


def _write(path: Path, tensors: dict[str, Tensor]) -> dict[str, Any]:
    save_file(tensors, path)
    data = path.read_bytes()
    return {"path": path.name, "bytes": len(data), "checksum": f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}"}


@dataclass
class Table:
    """A whole table in memory with its optimizer state; cut as a save or a shard wants it."""

    name: str
    spec: TableSpec
    weight: Tensor
    states: dict[str, Tensor]

    @classmethod
    def random(cls, name: str, rows: int, dim: int, optimizer: Any, generator: torch.Generator) -> Table:
        spec = TableSpec(rows=rows, dim=dim, dtype="fp32", optimizer=optimizer)
        shapes = state_shapes(optimizer, Piece(name, 0, rows, 0, dim))
        states = {state: torch.rand(shape, generator=generator) for state, shape in shapes.items()}
        return cls(name, spec, torch.randn(rows, dim, generator=generator), states)

    def piece(self, row_start: int, row_end: int, col_start: int = 0, col_end: int | None = None) -> Piece:
        return Piece(self.name, row_start, row_end, col_start, self.spec.dim if col_end is None else col_end)

    def cut(self, piece: Piece, ids: Tensor | None = None, cut: int = 1) -> Rows:
        rows: Any = slice(piece.row_start, piece.row_end) if ids is None else ids
        columns = slice(piece.col_start, piece.col_end)
        states = {n: s[rows][:, columns] if s.dim() == 2 else s[rows] for n, s in self.states.items()}
        return Rows(piece, self.weight[rows][:, columns], states, ids, cut)

    def room(self, piece: Piece) -> PieceRows:
        """Memory for the piece, full of garbage."""
        shapes = state_shapes(self.spec.optimizer, piece)
        states = {name: torch.full(shape, torch.nan) for name, shape in shapes.items()}
        return PieceRows(piece, torch.full((piece.rows, piece.dim), torch.nan), states)

    def assert_equal(self, found: PieceRows) -> None:
        expected = self.cut(found.piece)
        assert torch.equal(found.weights, expected.weight)
        assert found.states.keys() == expected.states.keys()
        for name, state in expected.states.items():
            assert torch.equal(found.states[name], state)


def row_wise(table: Table, pieces: int) -> list[Piece]:
    """About equal ranges of rows."""
    edges = [table.spec.rows * index // pieces for index in range(pieces + 1)]
    return [table.piece(start, end) for start, end in pairwise(edges) if start < end]


def column_wise(table: Table, pieces: int) -> list[Piece]:
    """About equal ranges of columns."""
    edges = [table.spec.dim * index // pieces for index in range(pieces + 1)]
    return [table.piece(0, table.spec.rows, *edge) for edge in pairwise(edges)]
