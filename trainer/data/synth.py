"""Writes synthetic Criteo data whose best possible score is known."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.data.criteo import DENSE, LABEL, SPARSE
from trainer.data.synth_model import PlantedModel, SynthRows
from trainer.data.synth_score import BayesScore, SliceReport
from trainer.data.synth_text import criteo_text

SynthFormat = Literal["criteo_tsv", "parquet"]

LAST_FRACTION: Final = 0.1
"""The slice at the end that is scored apart; the default of ``data.eval_fraction`` holds out the same rows."""


@dataclass(frozen=True, slots=True)
class SynthReport:
    """What was written, and the score of the true probabilities on all rows and on the last tenth (time order)."""

    rows: int
    seed: int
    format: str
    files: list[str]
    table_rows: dict[str, int]
    all_rows: SliceReport
    last_tenth: SliceReport


def synthesize(
    out_dir: str | os.PathLike[str],
    rows: int,
    seed: int,
    max_table_rows: int,
    format: SynthFormat = "criteo_tsv",
    files: int = 1,
) -> SynthReport:
    """Writes ``rows`` rows into ``files`` files in ``out_dir`` and the report into ``synth.json`` beside them.

    The rows depend on ``seed``, ``rows`` and ``max_table_rows`` only, not on format or number of files.

    Args:
        out_dir: created when missing; must not hold data files yet.
        rows: how many.
        seed: 0 or more.
        max_table_rows: cap on the distinct values of each category.
        format: text or Parquet.
        files: how many files, in time order by name.
    """
    for name, value, least in (("rows", rows, 1), ("seed", seed, 0), ("max_table_rows", max_table_rows, 1)):
        if value < least:
            raise ValueError(f"synth: {name} must be at least {least}, got {value}")
    if not 1 <= files <= rows:
        raise ValueError(f"synth: files must be from 1 to the number of rows ({rows}), got {files}")
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    present = [path.name for path in folder.glob("part-*")]
    if present:
        raise ValueError(f"synth: {folder} already holds {len(present)} part files; choose an empty directory")
    model = PlantedModel(seed, max_table_rows)
    last_start = rows - round(rows * LAST_FRACTION)
    everything, last = BayesScore(), BayesScore()
    suffix = "tsv" if format == "criteo_tsv" else "parquet"
    paths = [folder / f"part-{number:05}.{suffix}" for number in range(files)]
    at = 0
    with _Files(paths, [rows * number // files for number in range(1, files + 1)], format) as out:
        for chunk in model.chunks(rows):
            out.write(chunk)
            everything.add(chunk.labels, chunk.probabilities)
            held_out = max(last_start - at, 0)
            last.add(chunk.labels[held_out:], chunk.probabilities[held_out:])
            at += len(chunk.labels)
    report = SynthReport(
        rows,
        seed,
        format,
        [path.name for path in paths],
        dict(zip(SPARSE, model.tables, strict=True)),
        everything.report(0),
        last.report(last_start),
    )
    (folder / "synth.json").write_text(json.dumps(asdict(report), indent=2) + "\n")
    return report


class _Files:
    """Lays chunks end to end over files that end after the rows ``ends``."""

    def __init__(self, paths: Sequence[Path], ends: Sequence[int], format: SynthFormat) -> None:
        self._parts = iter(zip(paths, ends, strict=True))
        self._format = format
        self._row = self._end = 0
        self._open: _TextFile | _ParquetFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            self._open.close()

    def write(self, chunk: SynthRows) -> None:
        start, rows = 0, len(chunk.labels)
        while start < rows:
            if self._row == self._end or self._open is None:
                self.__exit__()
                path, self._end = next(self._parts)
                self._open = _TextFile(path) if self._format == "criteo_tsv" else _ParquetFile(path)
            end = min(rows, start + self._end - self._row)
            self._open.write(chunk.slice(start, end))
            self._row += end - start
            start = end


class _TextFile:
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self.close = self._file.close

    def write(self, rows: SynthRows) -> None:
        self._file.write(criteo_text(rows))


class _ParquetFile:
    """Integer columns; null is missing. One row group per chunk, the size of a default split."""

    _SCHEMA: Final = pa.schema(
        [(LABEL, pa.uint8()), *((name, pa.int32()) for name in DENSE), *((name, pa.uint32()) for name in SPARSE)]
    )

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(path, self._SCHEMA)
        self.close = self._writer.close

    def write(self, rows: SynthRows) -> None:
        counts, missing = rows.counts.astype(np.int32).T, rows.counts_missing.T
        columns = [pa.array(rows.labels)]
        columns += [pa.array(column, mask=empty) for column, empty in zip(counts, missing, strict=True)]
        pairs = zip(rows.categories.astype(np.uint32), rows.categories_missing, strict=True)
        columns += [pa.array(column, mask=empty) for column, empty in pairs]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._SCHEMA))
