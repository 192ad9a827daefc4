"""Prepares a data set: count the inputs, write what is missing, report on all."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from services.prepare.manifest import Manifest, Settings, rejected_path, stats_path
from services.prepare.plan import Piece, Source, pieces_of
from services.prepare.ray_map import ray_map
from services.prepare.report import ColumnReport, PrepareReport, VocabularyReport
from services.prepare.task import Job, load_rejected, scan_source, write_piece
from trainer.data.block import RejectedLine
from trainer.data.column_stats import ColumnStats
from trainer.data.criteo import DENSE, SPARSE
from trainer.data.criteo_tsv import CriteoTsv
from trainer.data.errors import DataError
from trainer.data.files import stamp
from trainer.data.rejections import LISTED, TooManyBadLinesError, too_many
from trainer.data.vocabulary import save_vocabularies

T = TypeVar("T")
R = TypeVar("R")

OnProgress = Callable[[str, int, int], None]
"""Is told a stage (``counting`` or ``writing``), how much is done and how much there is (bytes or rows)."""


class Mapper(Protocol):
    """Applies a function to items, in any order and place; ``ray_map``, or the built-in ``map``."""

    def __call__(self, run: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """The results; what ``run`` raises is raised."""


@dataclass(frozen=True)
class Request:
    """What is asked for. ``min_count`` asks for vocabularies; ``max_bad_lines`` is a share of all rows."""

    inputs: tuple[str, ...]
    out: Path
    settings: Settings
    max_bad_lines: float
    min_count: int | None = None


def prepare(request: Request, on_progress: OnProgress, mapper: Mapper = ray_map) -> PrepareReport:
    """Does it, on the Ray that is connected unless told otherwise; files of an earlier run are not written again.

    Raises:
        DataError: an input is missing, empty or damaged.
        TooManyBadLinesError: what is malformed is in ``rejected.jsonl``, what is finished stays.
    """
    started_s = time.monotonic()
    out, counted = request.out, request.min_count is not None
    paths = CriteoTsv().resolve(request.inputs)
    out.mkdir(parents=True, exist_ok=True)
    if str(out.resolve()) in {str(Path(path).parent.resolve()) for path in paths}:
        raise DataError(str(out), "is where the inputs are; write the prepared files to a directory of their own")
    manifest = Manifest.open(out, request.settings)
    sources = _sources(paths, manifest, request.settings.file_rows, on_progress, mapper)
    pieces = pieces_of(sources)
    manifest.sources = {source.path: source for source in sources}
    manifest.keep(pieces, counted, out)
    manifest.write(out)
    resumed = len(manifest.done)

    total = sum(source.rows for source in sources)
    job = Job(str(out.resolve()), request.settings, counted, int(total * request.max_bad_lines), total)
    try:
        _write(pieces, job, manifest, out, on_progress, mapper)
    finally:
        rejected = _collect_rejected(pieces, out)
    return _report(request, manifest, pieces, len(rejected), resumed, started_s)


def _sources(
    paths: Sequence[str], manifest: Manifest, file_rows: int, on_progress: OnProgress, mapper: Mapper
) -> list[Source]:
    """Every input with its rows; those that have not changed since they were counted are not read."""
    stamps = {path: stamp(path) for path in paths}
    known = {
        path: found
        for path in paths
        if (found := manifest.sources.get(path)) and (found.size_bytes, found.token) == stamps[path]
    }
    total = sum(size for size, _ in stamps.values())
    done = sum(source.size_bytes for source in known.values())
    on_progress("counting", done, total)
    for source in mapper(functools.partial(scan_source, file_rows=file_rows), [p for p in paths if p not in known]):
        known[source.path] = source
        done += source.size_bytes
        on_progress("counting", done, total)
    return [known[path] for path in paths]


def _write(
    pieces: Sequence[Piece], job: Job, manifest: Manifest, out: Path, on_progress: OnProgress, mapper: Mapper
) -> None:
    done_rows = sum(done.piece.end - done.piece.start for done in manifest.done.values())
    on_progress("writing", done_rows, job.total_rows)
    left = [piece for piece in pieces if piece.name not in manifest.done]
    for done in mapper(functools.partial(write_piece, job=job), left):
        manifest.done[done.piece.name] = done
        manifest.write(out)
        done_rows += done.piece.end - done.piece.start
        on_progress("writing", done_rows, job.total_rows)
        _check(manifest, job, out)
    _check(manifest, job, out)


def _check(manifest: Manifest, job: Job, out: Path) -> None:
    rejected = sum(done.rejected for done in manifest.done.values())
    if rejected > job.max_rejected:
        names = sorted(name for name, done in manifest.done.items() if done.rejected)
        lines = [line for name in names[:LISTED] for line in load_rejected(rejected_path(out, name))]
        raise TooManyBadLinesError(too_many(lines, rejected, job.max_rejected, job.total_rows))


def _collect_rejected(pieces: Sequence[Piece], out: Path) -> list[RejectedLine]:
    """All malformed lines into ``rejected.jsonl``, in the order of the inputs."""
    lines: list[RejectedLine] = []
    part = out / ".rejected.jsonl.part"
    with part.open("w", encoding="utf-8") as file:
        for piece in pieces:
            path = rejected_path(out, piece.name)
            lines += load_rejected(path)
            file.write(path.read_text(encoding="utf-8") if path.exists() else "")
    part.replace(out / "rejected.jsonl")
    return lines


def _report(
    request: Request, manifest: Manifest, pieces: Sequence[Piece], rejected: int, resumed: int, started_s: float
) -> PrepareReport:
    out, counted = request.out, SPARSE if request.min_count is not None else ()
    stats = ColumnStats((*DENSE, *SPARSE), counted)
    for piece in pieces:
        stats.merge(ColumnStats.load(stats_path(out, piece.name), stats.columns, counted))
    columns = {
        name: ColumnReport(missing=stats.missing[name], cardinality=stats.cardinality(name), exact=False)
        for name in stats.columns
    }
    vocabulary = None
    if request.min_count is not None:
        for name, whole in stats.vocabularies(1).items():
            distinct = int(whole.values.size) - (columns[name].missing > 0)  # missing is a value of a vocabulary
            columns[name] = ColumnReport(missing=columns[name].missing, cardinality=distinct, exact=True)
        kept = stats.vocabularies(request.min_count)
        save_vocabularies(kept, out / "vocabulary")
        vocabulary = VocabularyReport(
            directory=str(out / "vocabulary"),
            min_count=request.min_count,
            values={name: int(one.values.size) for name, one in kept.items()},
        )
    wall_s = time.monotonic() - started_s
    rows = sum(done.rows for done in manifest.done.values())
    report = PrepareReport(
        sources=list(manifest.sources),
        files=[piece.name for piece in pieces],
        resumed_files=resumed,
        rows=rows,
        rejected_lines=rejected,
        bytes=sum((out / piece.name).stat().st_size for piece in pieces),
        wall_s=wall_s,
        rows_per_s=rows / wall_s if wall_s > 0 else 0.0,
        columns=columns,
        vocabulary=vocabulary,
    )
    (out / "report.json").write_text(report.model_dump_json(indent=1, by_alias=True) + "\n", encoding="utf-8")
    return report
