"""What is measured: the shape, the settings and the data both sides share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.config import RunConfig
from services.config_file import load_config
from trainer.data.synth import synthesize

TABLE_ROWS = 1_000_000
"""Largest table; the shape is Criteo Kaggle's: 26 tables, dim 16, 13-512-256-64-16 and 512-256-1."""


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison: two training threads on each side (two trainers here, two ranks there)."""

    precision: str
    batch_size: int
    rows: int

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.precision.upper()} B={self.batch_size}"

    def config(self, data: Path, storage: Path) -> RunConfig:
        """The run, as a user would write it."""
        return load_config(
            None,
            [
                "name=bench",
                f"storage_path={storage}",
                "data.format=parquet",
                f"data.train={data}",
                "data.eval_fraction=0.0",
                f"data.categories.rows={TABLE_ROWS}",
                f"train.batch_size={self.batch_size}",
                f"train.precision={self.precision}",
                f"cluster.wire={self.precision}",
                "cluster.trainers=2",
                "cluster.shards=2",
            ],
        )


CASES = (
    Case("bf16", 2048, 1_000_000),
    Case("bf16", 200, 200_000),
    Case("bf16", 8192, 2_000_000),
    Case("fp32", 2048, 600_000),
)


def write_data(folder: Path, rows: int) -> Path:
    """Synthetic rows with Zipf-like ids in Kaggle's table sizes, as Parquet; written once a size."""
    target = folder / f"rows-{rows}"
    if not target.exists():
        synthesize(target, rows=rows, seed=0, max_table_rows=TABLE_ROWS, format="parquet", files=8)
    return target
