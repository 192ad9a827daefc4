"""The predictions of a run: part files written beside the books, rejected lines, counts."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from services.config import RunConfig
from services.coordinator.accounts import TooManyBadError
from services.coordinator.part_file import F32, I64, PartFile
from services.summary import PredictionSummary
from trainer.data.block import RejectedLine
from trainer.data.rejections import too_many
from trainer.data.split import Split
from trainer.data.unlabeled import PredictPlan
from trainer.ledger import Commit
from trainer.predictions import Scored

DIRECTORY = "predictions"
_MAX_BEHIND_ROWS = 4_000_000
_NO_ROWS: tuple[I64, F32] = (np.empty(0, np.int64), np.empty(0, np.float32))


def _files(number: int) -> str:
    return f"{number:,} file{'s' * (number != 1)}"


class PredictionsError(RuntimeError):
    """Predictions did not get into their files."""


def notices(plan: PredictPlan, config: RunConfig) -> list[str]:
    """What a person should know before training about what will be predicted after it."""
    said = [f"{plan.rows:,} rows to predict after training from {_files(len(plan.files))}"]
    if plan.labeled:
        others = f" and {len(plan.labeled) - 1} more" if len(plan.labeled) > 1 else ""
        said.append(f"data.predict: labels in {plan.labeled[0]}{others} are ignored")
    if config.cluster.trainers > 1 and not config.synchronized:
        said.append("sync.mode=none: every trainer predicts, as it evaluates, with a dense replica of its own")
    return said


class Predictions:
    """Told by the books, under their lock, what was predicted; files are written in a thread of its own.

    A row arrives exactly once: with the commit of its span. So nothing that a dead trainer had not reported is in a
    file, and what its successor does again is there once.
    """

    def __init__(self, plan: PredictPlan, directory: Path, max_bad_lines: float) -> None:
        """``max_bad_lines``: share of the rows. Nothing is created in ``directory`` before there are predictions."""
        self.total_rows, self.rows_done = plan.rows, 0
        self._directory, self._first_line, self._files = directory, plan.first_line, len(plan.files)
        self._numbers = {path: number for number, path in enumerate(plan.files)}
        self._allowed = math.floor(max_bad_lines * plan.rows + 1e-9)
        self._bad_lines: dict[tuple[str, int], RejectedLine] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="predictions")
        self._open: dict[tuple[str, int], PartFile] = {}
        self._written_rows = self._parts = self._not_finite_rows = self._taken_rows = 0
        self._started_s: float | None = None
        self.error: PredictionsError | None = None

    def add(self, spans: Sequence[tuple[Split, Commit]], scored: Sequence[Scored]) -> None:
        """Committed spans, and the predictions of those that have any."""
        self._started_s = self._started_s or time.monotonic()
        self.rows_done += sum(commit.end - commit.start for _, commit in spans)
        self._writer.submit(self._write, spans, {(one.lease_id, one.start): one for one in scored})

    def reject(self, lines: Sequence[RejectedLine]) -> list[RejectedLine]:
        """Note malformed lines; returns those not seen before."""
        fresh = [line for line in lines if (line.path, line.line) not in self._bad_lines]
        self._bad_lines.update({(line.path, line.line): line for line in fresh})
        return fresh

    def check_lines(self) -> None:
        """Raise ``TooManyBadError`` when there are more malformed lines than allowed."""
        if len(self._bad_lines) > self._allowed:
            lines = list(self._bad_lines.values())
            raise TooManyBadError(f"data.predict: {too_many(lines, len(lines), self._allowed, self.total_rows)}")

    @property
    def behind(self) -> bool:
        """The files lag so far behind the trainers that no more work should be given out for now."""
        return self.rows_done - self._taken_rows > _MAX_BEHIND_ROWS

    @property
    def rows_per_s(self) -> float:
        """Mean speed since the first predictions."""
        seconds = 0.0 if self._started_s is None else time.monotonic() - self._started_s
        return self.rows_done / seconds if seconds > 0 else 0.0

    def settle(self) -> None:
        """Wait until everything is on the disk.

        Raises:
            PredictionsError: it could not be written.
        """
        self._writer.shutdown()
        if self.error is not None:
            raise self.error
        if self._open:
            raise PredictionsError(
                f"predictions of {len(self._open)} splits lack rows, although all were committed (a bug)"
            )

    def close(self) -> None:
        """Stop writing; finished files stay, of the others nothing is left."""
        self._writer.shutdown(cancel_futures=True)
        for part in self._open.values():
            part.discard()
        self._open.clear()

    def summary(self) -> PredictionSummary:
        """What is in finished files."""
        return PredictionSummary(
            directory=DIRECTORY,
            files=self._files,
            parts=self._parts,
            rows=self._written_rows,
            rejected_lines=len(self._bad_lines),
            not_finite_rows=self._not_finite_rows,
        )

    def _write(self, spans: Sequence[tuple[Split, Commit]], scored: dict[tuple[int, int], Scored]) -> None:
        if self.error is not None:
            return
        try:
            for split, commit in spans:
                found = scored.get((commit.lease_id, commit.start))
                rows, probabilities = _NO_ROWS if found is None else (found.rows, found.probabilities)
                self._add(split, commit, rows, probabilities)
                self._taken_rows += commit.end - commit.start
        except Exception as error:  # nobody waits for this thread; the books end the run with it
            self.error = PredictionsError(f"{self._directory}: predictions cannot be written: {error}")

    def _add(self, split: Split, commit: Commit, rows: I64, probabilities: F32) -> None:
        key = split.path, split.row_start
        part = self._open.get(key)
        if part is None:
            # Names sort as files and rows do.
            name = f"part-{self._numbers[split.path]:05}-{split.row_start:012}.parquet"
            part = self._open[key] = PartFile(self._directory / name, split, self._first_line)
        self._not_finite_rows += len(rows) - int(np.count_nonzero(np.isfinite(probabilities)))
        if part.add(commit.start, commit.end, rows, probabilities):
            del self._open[key]
            self._parts += 1
            self._written_rows += part.rows
