"""What must hold before a save is shown to anybody: every file is there, and a full save has every row."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from checkpoint.errors import SaveIncomplete, SaveRefused
from checkpoint.manifest import FILE_NAME, FileEntry, Segment
from checkpoint.ticket import SaveTicket

_Edges = NDArray[np.int64]


def check_files(ticket: SaveTicket, files: Sequence[FileEntry], size_of: Callable[[str], int]) -> None:
    """Compare what the shards say with what is stored.

    Args:
        ticket: the save's.
        files: all of the save's.
        size_of: bytes of a file, by path; raises ``FileNotFoundError``.

    Raises:
        SaveIncomplete: a file is missing or has another size, a shard of the ticket wrote none, or a full save lacks
            rows or has some twice.
        SaveRefused: two entries have one path, or one leads out of the save's directory.
    """
    paths = [file.path for file in files]
    twice = sorted({path for path in paths if paths.count(path) > 1}) if len(set(paths)) < len(paths) else []
    if twice:
        raise SaveRefused(f"save {ticket.save_id}: several shards wrote {', '.join(twice)}; shard_ids must differ")
    for file in files:
        where = f"{ticket.url}/{file.path}"
        if not re.fullmatch(FILE_NAME, file.path):
            raise SaveRefused(f"save {ticket.save_id}: {file.path!r} is no name of a file in its directory")
        try:
            size = size_of(file.path)
        except FileNotFoundError:
            raise SaveIncomplete(f"{where} is missing though shard {file.shard_id} reported it as written") from None
        if size != file.bytes:
            raise SaveIncomplete(f"{where}: {size:,} bytes, shard {file.shard_id} wrote {file.bytes:,}")
    missing = sorted({*(ticket.shards or ())} - {file.shard_id for file in files})
    if missing:
        raise SaveIncomplete(f"{ticket.kind} save {ticket.save_id}: nothing was written by shards {missing}")
    if ticket.kind == "full":
        _check_whole(ticket, files)


def _check_whole(ticket: SaveTicket, files: Sequence[FileEntry]) -> None:
    """Every table is tiled by its segments: no row of any column is missing, none is there twice."""
    by_table: dict[str, list[Segment]] = {}
    for file in files:
        for segment in file.segments:
            by_table.setdefault(segment.table, []).append(segment)
    for table, spec in ticket.tables.items():
        segments = by_table.get(table, [])
        edges = np.array([(s.row_start, s.row_end, s.col_start, s.col_end) for s in segments], np.int64).reshape(-1, 4)
        fault = _gap(edges, spec.rows, spec.dim) or next((_thin(s) for s in segments if _thin(s)), None)
        if fault:
            raise SaveIncomplete(
                f"full save {ticket.save_id}: table {table!r} of {spec.rows:,} rows × {spec.dim} columns: {fault}: "
                "a shard's files are missing, or pieces overlap"
            )


def _gap(edges: _Edges, rows: int, dim: int) -> str | None:
    """What keeps (row start, end, column start, end) from tiling a table, band of columns by band."""
    columns = np.unique(np.append(edges[:, 2:], (0, dim))).tolist()
    for start, end in pairwise(columns):
        band = edges[(edges[:, 2] <= start) & (edges[:, 3] >= end), :2]
        band = band[np.argsort(band[:, 0])]
        begins, ends = np.append(band[:, 0], rows), np.append(0, band[:, 1])
        wrong = np.flatnonzero(begins != ends)
        if wrong.size:
            first, last = int(ends[wrong[0]]), int(begins[wrong[0]])
            what = "are missing" if first < last else "were written twice"
            return f"rows [{min(first, last):,}, {max(first, last):,}) of columns [{start}, {end}) {what}"
    return None


def _thin(segment: Segment) -> str | None:
    """What is wrong with a segment that has not all rows of its range."""
    if segment.rows == segment.row_end - segment.row_start:
        return None
    return f"{segment.rows:,} of the {segment.row_end - segment.row_start:,} rows of {segment.piece} were written"
