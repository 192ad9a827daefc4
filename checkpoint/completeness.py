"""What must hold before a save is shown to anybody: every file is there, and a full save has every row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from checkpoint.errors import SaveIncomplete, SaveRefused
from checkpoint.manifest import FileEntry
from checkpoint.ticket import SaveTicket


def check_files(ticket: SaveTicket, files: Sequence[FileEntry], size_of: Callable[[str], int]) -> None:
    """Compare what the shards say with what is stored.

    Args:
        ticket: the save's.
        files: all of the save's.
        size_of: bytes of a file, by path; raises ``FileNotFoundError``.

    Raises:
        SaveIncomplete: a file is missing or has another size, or a full save lacks rows or has some twice.
        SaveRefused: two entries have one path.
    """
    paths = [file.path for file in files]
    twice = sorted({path for path in paths if paths.count(path) > 1}) if len(set(paths)) < len(paths) else []
    if twice:
        raise SaveRefused(f"save {ticket.save_id}: several shards wrote {', '.join(twice)}; shard_ids must differ")
    for file in files:
        where = f"{ticket.url}/{file.path}"
        try:
            size = size_of(file.path)
        except FileNotFoundError:
            raise SaveIncomplete(f"{where} is missing though shard {file.shard_id} reported it as written") from None
        if size != file.bytes:
            raise SaveIncomplete(f"{where}: {size:,} bytes, shard {file.shard_id} wrote {file.bytes:,}")
    if ticket.kind == "full":
        _check_whole(ticket, files)


def _check_whole(ticket: SaveTicket, files: Sequence[FileEntry]) -> None:
    weights = dict.fromkeys(ticket.tables, 0)
    for file in files:
        for segment in file.segments:
            weights[segment.table] = weights.get(segment.table, 0) + segment.rows * segment.piece.dim
    for table, spec in ticket.tables.items():
        if weights[table] != spec.rows * spec.dim:
            raise SaveIncomplete(
                f"full save {ticket.save_id}: table {table!r} has {spec.rows * spec.dim:,} weights, "
                f"{weights[table]:,} were written: a shard's files are missing, or pieces overlap"
            )
