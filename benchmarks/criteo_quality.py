"""``python -m benchmarks.criteo_quality TRAIN_DIR EVAL_DIR``: quality on a real click log, over several seeds.

The directories hold Parquet files with Criteo's columns, the evaluation rows later in time than the training rows.
The JSON on stdout has every seed, its mean and standard deviation, and the bars; the table goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.config import RunConfig
from services.config_file import load_config
from services.driver import run

SINGLE_PROCESS = {"auc_low": 0.7546, "auc_high": 0.7563, "auc_mean": 0.7556, "logloss": 0.490}
"""What one process without actors reaches on the public Criteo sample (parts 0–74 train, 75–82 evaluate)."""

FIGURES = ("auc", "logloss", "progressive_logloss")


@dataclass(frozen=True, slots=True)
class Case:
    """How many trainers with how many threads each, and the least mean AUC on the Criteo sample."""

    trainers: int
    threads: int
    auc_bar: float

    @property
    def name(self) -> str:
        """Such as ``2x2``: trainers times threads."""
        return f"{self.trainers}x{self.threads}"

    def config(self, train: str, evaluate: str, storage: str, seed: int, precision: str) -> RunConfig:
        """One epoch over rare values folded together; dense rate decays to zero, the embeddings' does not."""
        return load_config(
            None,
            [
                f"name=quality-{self.name}-seed-{seed}",
                f"storage_path={storage}",
                f"seed={seed}",
                "data.format=parquet",
                f"data.train={train}",
                f"data.eval={evaluate}",
                "data.categories.encoding=vocabulary",
                "data.categories.min_count=4",
                "model.embedding_dim=16",
                "model.dense_arch=[512, 256, 64, 16]",
                "model.over_arch=[512, 256, 1]",
                "embedding.optimizer=exact_row_wise_adagrad",
                "embedding.learning_rate=0.02",
                "embedding.decay=none",
                "dense.optimizer=adam",
                "dense.learning_rate=0.001",
                "dense.decay=linear",
                "train.batch_size=128",
                "train.epochs=1",
                f"train.hogwild_threads={self.threads}",
                f"train.precision={precision}",
                f"cluster.trainers={self.trainers}",
                f"cluster.shards={self.trainers}",
            ],
        )


CASES = (Case(1, 1, 0.7545), Case(2, 2, 0.7535))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train every case with every seed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.criteo_quality", description=__doc__)
    parser.add_argument("train", metavar="TRAIN_DIR")
    parser.add_argument("evaluate", metavar="EVAL_DIR")
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 0 (default 5)")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="all when left out")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of the dense part")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds must be at least 1, got {options.seeds}")
    results = []
    with tempfile.TemporaryDirectory(prefix="penumbra-quality-") as storage:
        for case in CASES:
            if not options.case or case.name in options.case:
                settings = (options.train, options.evaluate, storage)
                results.append(
                    _summarized(case, [_quality(case, *settings, s, options.precision) for s in range(options.seeds)])
                )
                print(_row(results[-1]), file=sys.stderr, flush=True)
    report = {"benchmark": "criteo_quality", "precision": options.precision, "single_process": SINGLE_PROCESS}
    json.dump({**report, "cases": results}, sys.stdout, indent=1, allow_nan=False)
    print()


def _quality(case: Case, train: str, evaluate: str, storage: str, seed: int, precision: str) -> dict[str, Any]:
    summary = run(case.config(train, evaluate, storage, seed, precision))
    metrics = summary.metrics
    if summary.state != "SUCCEEDED" or metrics is None:
        raise RuntimeError(f"{case.name}, seed {seed}: {summary.state}: {summary.error}")
    found = {figure: getattr(metrics, figure) for figure in FIGURES}
    figures = "  ".join(f"{figure} {_text(value)}" for figure, value in found.items())
    speed = f"{summary.throughput_samples_per_s:,.0f} samples/s"
    print(f"{case.name}  seed {seed}  {figures}  {speed}", file=sys.stderr, flush=True)
    return {
        "seed": seed,
        **found,
        "trained": summary.samples.trained,
        "eval_samples": metrics.eval_samples,
        "throughput_samples_per_s": summary.throughput_samples_per_s,
    }


def _summarized(case: Case, seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """``null`` where a figure does not exist for every seed, or the deviation for one seed."""
    values = {figure: [seed[figure] for seed in seeds] for figure in FIGURES}
    whole = {figure: found for figure, found in values.items() if None not in found}
    return {
        "case": case.name,
        "mean": {figure: statistics.fmean(whole[figure]) if figure in whole else None for figure in FIGURES},
        "standard_deviation": {
            figure: statistics.stdev(whole[figure]) if figure in whole and len(seeds) > 1 else None
            for figure in FIGURES
        },
        "auc_bar": case.auc_bar,
        "seeds": seeds,
    }


def _row(result: dict[str, Any]) -> str:
    mean, deviation = result["mean"], result["standard_deviation"]
    figures = "  ".join(f"{figure} {_text(mean[figure])} ± {_text(deviation[figure])}" for figure in FIGURES)
    return f"{result['case']}  mean of {len(result['seeds'])}  {figures}  AUC bar {result['auc_bar']}"


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


if __name__ == "__main__":
    main()
