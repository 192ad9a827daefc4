"""Which rows of which input go into which output file."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from trainer.data.index import FileIndex


class Source(BaseModel):
    """An input file as it was when its rows were counted; ``offsets`` are bytes of ``starts`` in plain text."""

    model_config = ConfigDict(frozen=True)

    path: str
    size_bytes: int
    token: str
    rows: int
    starts: tuple[int, ...]
    offsets: tuple[int, ...] | None

    @classmethod
    def of(cls, index: FileIndex, stamp: tuple[int, str]) -> Source:
        """From a scan; ``stamp`` is the file's size and version before it."""
        return cls(
            path=index.path,
            size_bytes=stamp[0],
            token=stamp[1],
            rows=index.rows,
            starts=index.starts,
            offsets=index.offsets,
        )


class Piece(BaseModel):
    """Rows ``[start, end)`` of a source, for the output file ``name``; ``byte_start`` is theirs in plain text."""

    model_config = ConfigDict(frozen=True)

    name: str
    path: str
    size_bytes: int
    token: str
    start: int
    end: int
    byte_start: int | None


def pieces_of(sources: Sequence[Source]) -> list[Piece]:
    """Output files in the order of the sources: their names are in time order, too."""
    pieces = []
    for number, source in enumerate(sources):
        ends = [*source.starts[1:], source.rows]
        offsets = source.offsets or [None] * len(ends)
        for part, (start, end, offset) in enumerate(zip(source.starts, ends, offsets, strict=True)):
            pieces.append(
                Piece(
                    name=f"part-{number:04}-{part:05}.parquet",
                    path=source.path,
                    size_bytes=source.size_bytes,
                    token=source.token,
                    start=start,
                    end=end,
                    byte_start=offset,
                )
            )
    return pieces
