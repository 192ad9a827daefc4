"""What is measured: the shapes, the settings and the data both sides share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.multi_hot import write_days
from services.config import RunConfig
from services.config_file import load_config
from trainer.data.categories import category_settings
from trainer.data.npy import NpyDays
from trainer.data.synth import synthesize

_FILES = 8


class Case(Protocol):
    """One comparison: two training threads on each side (two trainers here, two ranks there)."""

    @property
    def name(self) -> str:
        """For tables."""

    @property
    def rows(self) -> int:
        """Samples of one epoch."""

    def write_data(self, folder: Path) -> Path:
        """Write the data below ``folder``, unless it is there; returns where."""

    def config(self, data: Path, storage: Path) -> RunConfig:
        """The run, as a user would write it."""


@dataclass(frozen=True, slots=True)
class KaggleDlrm:
    """Criteo Kaggle's shape: 26 one-hot tables, dim 16, 13-512-256-64-16 and 512-256-1."""

    precision: str
    batch_size: int
    rows: int
    table_rows: int = 1_000_000
    """Largest table."""

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.precision.upper()} B={self.batch_size}"

    def write_data(self, folder: Path) -> Path:
        """Synthetic rows with Zipf-like ids in Kaggle's table sizes, as Parquet."""
        target = folder / f"rows-{self.rows}"
        if not target.exists():
            synthesize(target, rows=self.rows, seed=0, max_table_rows=self.table_rows, format="parquet", files=_FILES)
        return target

    def config(self, data: Path, storage: Path) -> RunConfig:
        """The defaults."""
        return load_config(
            None,
            [
                *_common(data, storage, self.batch_size, self.precision),
                "data.format=parquet",
                f"data.categories.rows={self.table_rows}",
            ],
        )


@dataclass(frozen=True, slots=True)
class MlperfDcnv2:
    """MLPerf's DCNv2 (dim 128, 214 ids a sample) with smaller tables; multi-hot data as MLPerf's day files have it."""

    precision: str
    batch_size: int
    rows: int
    table_rows: int = 100_000
    """Largest table: 0.92 million rows in all, 0.9 GB of weights and optimizer state."""

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.precision.upper()} B={self.batch_size} DCNv2"

    def write_data(self, folder: Path) -> Path:
        """Random rows with MLPerf's hotness."""
        target = folder / f"multi-hot-{self.rows}"
        if not target.exists():
            data = self.config(target, folder).data
            features = category_settings(NpyDays(labeled=True, multi_hot=True).schema, data).values()
            write_days(target, self.rows, _FILES, [f.rows for f in features], [f.hotness for f in features])
        return target

    def config(self, data: Path, storage: Path) -> RunConfig:
        """The shipped file with the table sizes, the data and the cluster of this benchmark."""
        return load_config(
            str(Path(__file__).parents[1] / "configs" / "mlperf_dcnv2.yaml"),
            [
                *_common(data, storage, self.batch_size, self.precision),
                "data.format=npy_multi_hot",
                f"data.max_table_rows={self.table_rows}",
            ],
        )


CASES: tuple[Case, ...] = (
    KaggleDlrm("bf16", 2048, 1_000_000),
    KaggleDlrm("bf16", 200, 200_000),
    KaggleDlrm("bf16", 8192, 2_000_000),
    KaggleDlrm("fp32", 2048, 600_000),
    MlperfDcnv2("bf16", 2048, 460_000),
)


def _common(data: Path, storage: Path, batch_size: int, precision: str) -> list[str]:
    return [
        "name=bench",
        f"storage_path={storage}",
        f"data.train={data}",
        "data.eval_fraction=0.0",
        f"train.batch_size={batch_size}",
        f"train.precision={precision}",
        f"cluster.wire={precision}",
        "cluster.trainers=2",
        "cluster.shards=2",
    ]
