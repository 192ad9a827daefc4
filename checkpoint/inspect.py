"""What a save holds, from its manifest alone: tables, pieces by shard, states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, JsonValue

from checkpoint.manifest import Encoding, FileEntry, Manifest, SaveKind, Segment, TableSpec
from checkpoint.piece import Piece


class _View(BaseModel):
    model_config = ConfigDict(frozen=True)


class TableView(_View):
    """A table of the model, and how much of it is in this save."""

    rows: int
    dim: int
    dtype: str
    optimizer: str
    saved_rows: int
    """Of which the save has all columns or some, a row in several column pieces counted by its share."""
    encodings: tuple[Encoding, ...]


class ShardView(_View):
    """What one shard wrote."""

    files: int
    bytes: int
    rows: int
    """Of all pieces; a row counts once for each of its column pieces."""
    pieces: tuple[str, ...]
    """``table[first row:end row, first column:end column]``, chunk joined to chunk."""


class SaveView(_View):
    """Everything a person asks of a save before loading it."""

    save_id: str
    run: str
    kind: SaveKind
    consistent: bool
    timeline: int
    sequence: int
    parent: str | None
    created_unix_s: float
    samples: int
    bytes: int
    tables: dict[str, TableView]
    shards: dict[int, ShardView]
    states: dict[str, int]
    """Bytes of what is not rows, by name."""
    extra: dict[str, JsonValue]

    @classmethod
    def of(cls, save: Manifest) -> SaveView:
        """The view of a save."""
        shard_ids = sorted({file.shard_id for file in save.files if file.shard_id is not None})
        return cls(
            save_id=save.save_id,
            run=save.run,
            kind=save.kind,
            consistent=save.consistent,
            timeline=save.timeline,
            sequence=save.sequence,
            parent=save.parent,
            created_unix_s=save.created_unix_s,
            samples=save.samples,
            bytes=sum(file.bytes for file in save.files),
            tables={name: _table(name, spec, save.files) for name, spec in save.tables.items()},
            shards={shard: _shard([file for file in save.files if file.shard_id == shard]) for shard in shard_ids},
            states={file.state: file.bytes for file in save.files if file.state is not None},
            extra=save.extra,
        )


def _table(name: str, spec: TableSpec, files: Iterable[FileEntry]) -> TableView:
    segments = [segment for file in files for segment in file.segments if segment.table == name]
    values = sum(segment.rows * segment.piece.dim for segment in segments)
    return TableView(
        **spec.model_dump(),
        saved_rows=values // spec.dim,
        encodings=tuple(sorted({segment.encoding for segment in segments})),
    )


def _shard(files: Sequence[FileEntry]) -> ShardView:
    segments = [segment for file in files for segment in file.segments]
    return ShardView(
        files=len(files),
        bytes=sum(file.bytes for file in files),
        rows=sum(segment.rows for segment in segments),
        pieces=tuple(map(str, _joined(segments))),
    )


def _joined(segments: Iterable[Segment]) -> list[Piece]:
    pieces: list[Piece] = []
    for piece in sorted({s.piece for s in segments}, key=lambda p: (p.table, p.col_start, p.col_end, p.row_start)):
        last = pieces[-1] if pieces else None
        if (
            last
            and replace(piece, row_start=last.row_start, row_end=last.row_end) == last
            and piece.row_start <= last.row_end
        ):
            pieces[-1] = replace(last, row_end=max(last.row_end, piece.row_end))
        else:
            pieces.append(piece)
    return pieces
