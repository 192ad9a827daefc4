"""The manifest of a save: what it holds, file by file; written last, so its presence makes the save visible."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from checkpoint.cut import Cut
from checkpoint.piece import Piece

MANIFEST = "manifest.json"

SaveKind = Literal["full", "priority", "delta"]
Encoding = Literal["fp32", "fp16", "int8", "int4"]

FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Of a save's files: one component, so that a manifest never leads out of its directory."""

_Count = Annotated[int, Field(ge=0)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")  # the default writes null


class TableSpec(_Record):
    """One whole table, whatever its placement."""

    rows: Annotated[int, Field(gt=0)]
    dim: Annotated[int, Field(gt=0)]
    dtype: Literal["fp32", "fp16"]
    """Of the live rows; how they are stored is the segment's ``encoding``."""
    optimizer: Literal["exact_sgd", "exact_adagrad", "exact_row_wise_adagrad"]


class Segment(_Record):
    """Rows of one piece cut at one instant: tensors ``{prefix}.weight``, ``{prefix}.ids``, ``{prefix}.state.{name}``.

    Without ``sparse`` they are the rows ``[row_start, row_end)`` in order; with it ``{prefix}.ids`` (int64, ascending,
    global) names them, all within that range.
    """

    prefix: str
    table: str
    row_start: _Count
    row_end: _Count
    col_start: _Count
    col_end: _Count
    rows: _Count
    sparse: bool
    encoding: Encoding
    cut: _Count
    """Of ``checkpoint.cut.Cut``; the timeline is the manifest's."""

    @property
    def piece(self) -> Piece:
        """The ranges as a piece."""
        return Piece(self.table, self.row_start, self.row_end, self.col_start, self.col_end)


class FileEntry(_Record):
    """One safetensors file of the save, path relative to the save's directory."""

    path: Annotated[str, Field(pattern=FILE_NAME)]
    bytes: _Count
    checksum: str
    """``algorithm:hexdigest`` of the whole file."""
    shard_id: int | None = None
    segments: tuple[Segment, ...] = ()
    state: str | None = None
    """Name of the dense or other state it holds instead of rows, such as ``dense/trainer-0``."""


class Manifest(_Record):
    """A complete save."""

    format: Literal[1] = 1
    """Version of the format; a reader refuses any other."""
    save_id: str
    run: str
    kind: SaveKind
    consistent: bool
    """One cut of everything; else every chunk has its own."""
    timeline: _Count
    sequence: _Count
    """Counts the saves of the run over all timelines; greater is younger."""
    parent: str | None
    """The save this one continues; ``None`` for a full save. Rows not in it are found there."""
    created_unix_s: float
    samples: _Count
    tables: dict[str, TableSpec]
    files: tuple[FileEntry, ...]
    extra: dict[str, JsonValue] = {}
    """Data position, random generators, metrics state, optimizer scalars, versions."""

    @property
    def exact(self) -> bool:
        """Whether it, and what it continues, is the state of one instant: one cut of everything that changed.

        A priority save leaves changed rows out, so it never is.
        """
        return self.consistent and self.kind != "priority"

    def cut(self, segment: Segment) -> Cut:
        """The version of a segment's rows."""
        return Cut(self.timeline, segment.cut)

    def model_post_init(self, context: Any, /) -> None:
        """Check what the fields say about each other.

        Raises:
            ValueError: a full save with a parent, another save without one, or a segment outside its table.
        """
        if (self.parent is None) != (self.kind == "full"):
            raise ValueError(f"save {self.save_id}: kind {self.kind} and parent {self.parent!r} contradict")
        for file in self.files:
            for segment in file.segments:
                table = self.tables.get(segment.table)
                if table is None or segment.row_end > table.rows or segment.col_end > table.dim:
                    raise ValueError(f"save {self.save_id}, file {file.path}: {segment.piece} is not in the tables")
                if segment.rows > segment.row_end - segment.row_start or (
                    not segment.sparse and segment.rows != segment.row_end - segment.row_start
                ):
                    raise ValueError(f"save {self.save_id}, file {file.path}: {segment.piece} has {segment.rows} rows")
