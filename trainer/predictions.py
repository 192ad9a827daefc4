"""Predictions of single input rows, as a trainer hands them on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.data.batch import Batch
from trainer.metrics import sigmoid


class Scored(NamedTuple):
    """The n predicted rows of the span of ``lease_id`` that begins with input row ``start``.

    ``rows``: n int64, rows of the file. ``probabilities``: n float32, of a click.
    """

    lease_id: int
    start: int
    rows: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float32]


def score(batch: Batch, logits: npt.NDArray[np.float32]) -> list[Scored]:
    """B logits of a batch with ``rows`` as probabilities, span by span."""
    assert batch.rows is not None
    rows = batch.rows.numpy()
    probabilities = np.asarray(sigmoid(logits.astype(np.float64)), dtype=np.float32)
    found: list[Scored] = []
    at = 0
    for span in batch.spans:
        window = slice(at, at + span.rows)
        found.append(Scored(span.lease_id, span.start, rows[window], probabilities[window]))
        at += span.rows
    return found
