"""The work of one Ray Data task: count the rows of a file, or write one output file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from services.prepare.manifest import SIDE, Done, Settings, rejected_path, stats_path
from services.prepare.plan import Piece, Source
from trainer.data.block import RejectedLine
from trainer.data.column_stats import ColumnStats
from trainer.data.criteo import DENSE, SPARSE
from trainer.data.criteo_convert import convert
from trainer.data.errors import DataError
from trainer.data.files import stamp
from trainer.data.rejections import TooManyBadLinesError, too_many
from trainer.data.split import Split
from trainer.data.text_files import scan_text


class Job(NamedTuple):
    """What every task of a run is told.

    ``max_rejected`` lines may be malformed, of ``total_rows``.
    """

    out: str
    settings: Settings
    counted: bool
    max_rejected: int
    total_rows: int


def scan_source(path: str, file_rows: int) -> Source:
    """Counts the rows of an input file."""
    before = stamp(path)
    return Source.of(scan_text(path, file_rows), before)


def write_piece(piece: Piece, job: Job) -> Done:
    """Writes an output file and its statistics; it gets its name when it is complete.

    Raises:
        DataError: the source has changed or is damaged.
        TooManyBadLinesError: this piece alone has more malformed lines than the whole data may have.
    """
    out = Path(job.out)
    (out / SIDE).mkdir(exist_ok=True)
    if stamp(piece.path) != (piece.size_bytes, piece.token):
        raise DataError(piece.path, "has changed since its rows were counted; start again")
    stats = ColumnStats((*DENSE, *SPARSE), SPARSE if job.counted else ())
    rejected: list[RejectedLine] = []

    def note(lines: Sequence[RejectedLine]) -> None:
        rejected.extend(lines)
        if len(rejected) > job.max_rejected:
            _save_rejected(rejected, rejected_path(out, piece.name))
            raise TooManyBadLinesError(too_many(rejected, len(rejected), job.max_rejected, job.total_rows))

    split = Split(piece.path, piece.start, piece.end, piece.byte_start)
    part = out / f".{piece.name}.{os.getpid()}.part"
    try:
        rows = convert(split, str(part), job.settings.group_rows, stats, note, labeled=job.settings.labeled)
        stats.save(stats_path(out, piece.name))
        _save_rejected(rejected, rejected_path(out, piece.name))
        part.replace(out / piece.name)
    finally:
        part.unlink(missing_ok=True)
    return Done(piece=piece, rows=rows, rejected=len(rejected), counted=job.counted)


def load_rejected(path: Path) -> list[RejectedLine]:
    """What ``write_piece`` kept of a piece's malformed lines."""
    if not path.exists():
        return []
    return [RejectedLine(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _save_rejected(lines: Sequence[RejectedLine], path: Path) -> None:
    path.unlink(missing_ok=True)
    if lines:
        path.write_text("".join(json.dumps(line._asdict()) + "\n" for line in lines), encoding="utf-8")
