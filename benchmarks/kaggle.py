"""The shape of Criteo's Kaggle log, and ids drawn like clicks: few rows often, most rows seldom."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ROWS = (
    *(1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194, 27, 14_992, 5_461_306),
    *(10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)
"""Distinct values of the 26 categorical columns, as published with the DLRM code."""
DIM = 16
EXPONENT = 1.05


def table_rows(max_rows: int) -> dict[str, int]:
    """Table → rows, of at most ``max_rows``."""
    return {f"C{number}": min(rows, max_rows) for number, rows in enumerate(ROWS, 1)}


def zipf_ids(random: np.random.Generator, rows: int, count: int, exponent: float = EXPONENT) -> NDArray[np.int64]:
    """``count`` ids below ``rows``: rank k with a chance about k^-exponent, ranks scattered over the table.

    Ranks come from the inverse of the continuous distribution function, so tables of any size cost the same.
    """
    power = 1.0 - exponent
    ranks = ((random.random(count) * (float(rows) ** power - 1.0) + 1.0) ** (1.0 / power)).astype(np.int64) - 1
    scattered: NDArray[np.int64] = (np.clip(ranks, 0, rows - 1) * 2_654_435_761) % rows
    return scattered


def one_hot_ids(random: np.random.Generator, rows: dict[str, int], batch: int) -> Tensor:
    """Ids T·B of a request with one id a table and sample."""
    return torch.from_numpy(np.concatenate([zipf_ids(random, count, batch) for count in rows.values()]))
