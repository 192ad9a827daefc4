"""Whole runs that predict unlabeled files at their end: every row once, with the model that was evaluated."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from services.config import RunConfig
from services.driver import run
from services.progress import Progress
from services.ray_session import ray_session
from services.summary import PredictionSummary, Summary
from tests.services.run_tools import click_log, events, role_processes, tiny_run

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_left")]

ROWS = 12_001  # enough that two swapped neighbours move no AUC by 1e-6


@pytest.fixture(scope="module", autouse=True)
def ray_for_all() -> Iterator[None]:
    with ray_session(RunConfig.model_validate({"cluster": {"trainers": 6, "shards": 4}})):
        yield


def random_log(path: Path, rows: int, seed: int) -> list[str]:
    """Labeled lines that are all different, so that no two predictions need be equal."""
    rng = random.Random(seed)
    lines = []
    for _ in range(rows):
        counts = [rng.randint(0, 10_000) for _ in range(13)]
        ids = [rng.randint(0, 9), *(rng.randint(0, 999) for _ in range(25))]
        label = int(rng.random() < 0.1 + 0.08 * ids[0])
        lines.append("\t".join(map(str, [label, *counts, *(f"{one:08x}" for one in ids)])))
    path.write_text("".join(f"{line}\n" for line in lines))
    return lines


def without_label(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line.partition("\t")[2] + "\n" for line in lines))
    return path


def predictions(folder: Path) -> pa.Table:
    """As anybody would read them: the whole directory, part files in the order of their names."""
    return pq.read_table(folder / "runs/run/predictions")


def check_every_row_once(table: pa.Table, wanted: list[tuple[Path, int]]) -> None:
    """The files' rows in order, without any other."""
    found = list(zip(table["file"].to_pylist(), table["row"].to_pylist(), strict=True))
    assert found == [(str(path), row) for path, rows in wanted for row in range(rows)]
    probabilities = table["probability"].to_numpy()
    assert probabilities.dtype == np.float32 and (probabilities > 0).all() and (probabilities < 1).all()


def done(summary: Summary) -> PredictionSummary:
    assert (summary.state, summary.error) == ("SUCCEEDED", None)
    assert summary.predictions is not None and summary.metrics is not None
    return summary.predictions


@pytest.mark.parametrize(
    ("trainers", "precision"), [(2, "fp32"), pytest.param(1, "bf16", marks=pytest.mark.slow)], ids=str
)
def test_predictions_are_those_of_the_model_that_was_evaluated(tmp_path: Path, trainers: int, precision: str) -> None:
    random_log(tmp_path / "train.tsv", 6000, seed=1)
    held_out = random_log(tmp_path / "eval.tsv", ROWS, seed=2)
    folder = tmp_path / "unlabeled"
    folder.mkdir()
    bare = without_label(folder / "a.tsv", held_out)
    strange = ["?" + line[1:] for line in held_out]  # labels, but not such that one could train on them
    labeled = folder / "b.tsv"
    labeled.write_text("".join(f"{line}\n" for line in strange))
    seen: list[Progress] = []
    summary = run(
        tiny_run(
            tmp_path,
            tmp_path / "train.tsv",
            data={"eval": str(tmp_path / "eval.tsv"), "predict": str(folder), "rows_per_split": 1000},
            train={"precision": precision, "batch_size": 256, "hogwild_threads": 2},
            dense={"learning_rate": 0.01},
            embedding={"learning_rate": 0.1},
            cluster={"trainers": trainers, "shards": 2},
        ),
        seen.append,
    )
    parts = len(list((tmp_path / "runs/run/predictions").iterdir()))
    assert done(summary) == PredictionSummary(directory="predictions", files=2, parts=parts, rows=2 * ROWS)
    assert parts > 2 * trainers
    table = predictions(tmp_path)
    check_every_row_once(table, [(bare, ROWS), (labeled, ROWS)])
    assert table["line"].to_pylist() == [row + 1 for row in table["row"].to_pylist()]
    labels = np.array([int(line[0]) for line in held_out])
    first, second = table["probability"].to_numpy().reshape(2, -1)
    np.testing.assert_allclose(first, second, rtol=1e-6 if precision == "fp32" else 1e-2)  # sums depend on batch sizes
    metrics = summary.metrics
    assert metrics is not None and metrics.auc is not None and metrics.eval_samples == ROWS
    print("AUC", metrics.auc, roc_auc_score(labels, first), "logloss", metrics.logloss, log_loss(labels, first))
    assert metrics.auc > 0.6, "it has learnt, so that equal figures say something"
    assert roc_auc_score(labels, first) == pytest.approx(metrics.auc, abs=1e-6)
    assert log_loss(labels, first) == pytest.approx(metrics.logloss, abs=1e-6)
    messages = [message for progress in seen for message in progress.messages]
    assert f"data.predict: labels in {labeled} are ignored" in messages
    assert [event["stage"] for event in events(tmp_path, "stage")][-2:] == ["predicting", "finishing"]
    assert Summary.read(tmp_path / "runs/run/summary.json") == summary
    assert summary.samples.trained == 6000 and summary.samples.repeated == 0


class KillWhilePredicting:
    """A progress callback: SIGKILL to one trainer once a tenth of the rows was predicted."""

    def __init__(self) -> None:
        self.at: tuple[int, int] | None = None

    def __call__(self, progress: Progress) -> None:
        rows, total = progress.predicted_rows, progress.total_predicted_rows
        if self.at is None and total and total / 10 <= rows < total:
            role_processes(os.getpid(), "Trainer")[0].send_signal(signal.SIGKILL)
            self.at = rows, total


def test_a_trainer_killed_while_predicting_loses_and_doubles_no_row(tmp_path: Path) -> None:
    log = click_log(tmp_path / "train.tsv", 1000)
    rows, bad = 30_000, {7, 20_000, 20_001, 29_999}
    labeled = click_log(tmp_path / "labeled.tsv", rows, bad)
    bare = without_label(tmp_path / "test.txt", labeled.read_text().splitlines())
    fault = KillWhilePredicting()
    summary = run(
        tiny_run(
            tmp_path,
            log,
            data={"predict": [str(bare)], "rows_per_split": 1000},
            train={"batch_size": 8, "epochs": 1},
            cluster={"trainers": 2, "shards": 1},
        ),
        fault,
    )
    print("killed at", fault.at, events(tmp_path, "replaced"))
    assert fault.at is not None and 0 < fault.at[0] < fault.at[1] == rows
    (replaced,) = events(tmp_path, "replaced")
    assert replaced["adopted"] and replaced["requeued_rows"] > 0
    found = done(summary)
    assert (found.rows, found.rejected_lines, summary.samples.rejected_lines) == (rows - 4, 4, 0)
    table = predictions(tmp_path)
    assert table["row"].to_pylist() == [row for row in range(rows) if row not in bad]
    assert table["line"].to_pylist() == [row + 1 for row in range(rows) if row not in bad]
    names = sorted(path.name for path in (tmp_path / "runs/run/predictions").iterdir())
    assert len(names) == found.parts and all(name.endswith(".parquet") for name in names)
    # The log repeats the same 1000 lines, bad ones apart: equal rows have equal predictions, whoever made them.
    by_line: dict[int, list[float]] = {}
    for row, probability in zip(table["row"].to_pylist(), table["probability"].to_pylist(), strict=True):
        by_line.setdefault(row % 1000, []).append(probability)
    assert max(max(found) / min(found) for found in by_line.values()) < 1.01
    rejected = [json.loads(line) for line in (tmp_path / "runs/run/rejected.jsonl").read_text().splitlines()]
    assert sorted((line["path"], line["line"]) for line in rejected) == [(str(bare), row + 1) for row in sorted(bad)]
    assert summary.samples.trained == 1000 and [failure.mode for failure in summary.failures] == ["warm"]


def table_of(rows: int, seed: int) -> pa.Table:
    rng = random.Random(seed)
    users = [rng.randint(0, 50) for _ in range(rows)]
    return pa.table(
        {
            "clicked": [int(rng.random() < 0.1 + 0.8 * (user < 10)) for user in users],
            "age": [rng.random() for _ in users],
            "user": [f"u{user}" for user in users],
            "tags": ["|".join(rng.choices("abcdef", k=rng.randint(0, 3))) for _ in users],
        }
    )


@pytest.mark.parametrize(
    "kind", ["csv", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("parquet", "headerless tsv"))]
)
def test_tables_with_a_column_map(tmp_path: Path, kind: str) -> None:
    file_format, header = kind.split()[-1], kind != "headerless tsv"
    label, age, user, tags = ("clicked", "age", "user", "tags") if header else ("0", "1", "2", "3")

    def write(table: pa.Table, name: str) -> Path:
        path = tmp_path / f"{name}.{file_format}"
        if file_format == "parquet":
            pq.write_table(table, path, row_group_size=100)
        else:
            options = {"delimiter": "," if file_format == "csv" else "\t", "quoting_style": "none"}
            pc.write_csv(table, path, pc.WriteOptions(include_header=header, **options))
        return path

    train, held_out = write(table_of(2000, 1), "train"), write(table_of(500, 2), "eval")
    bare = write(table_of(500, 2).drop_columns("clicked"), "bare")
    columns: dict[str, Any] = {"label": label, "dense": [age], "categorical": [user], "lists": {tags: {}}}
    data = {"format": file_format, "eval": str(held_out), "predict": [str(bare), str(held_out)], "rows_per_split": 100}
    if file_format == "parquet":
        data["predict"] = str(bare)
    summary = run(
        tiny_run(
            tmp_path,
            train,
            data={**data, "columns": {**columns, "header": header}},
            train={"precision": "fp32", "batch_size": 32},
            dense={"learning_rate": 0.01},
        )
    )
    assert done(summary).rejected_lines == 0
    files = [bare] if file_format == "parquet" else [bare, held_out]
    table = predictions(tmp_path)
    check_every_row_once(table, [(path, 500) for path in files])
    lines = [None] * 500 if file_format == "parquet" else [row + 1 + header for row in range(500)]
    assert table["line"].to_pylist() == lines * len(files)
    labels = table_of(500, 2)["clicked"].to_numpy()
    assert summary.metrics is not None and summary.metrics.auc is not None and summary.metrics.auc > 0.6
    for probabilities in table["probability"].to_numpy().reshape(len(files), 500):
        assert roc_auc_score(labels, probabilities) == pytest.approx(summary.metrics.auc, abs=1e-6)


@pytest.mark.slow
def test_too_many_bad_lines_fail_the_run_and_finished_parts_stay(tmp_path: Path) -> None:
    log = click_log(tmp_path / "train.tsv", 640)
    labeled = click_log(tmp_path / "labeled.tsv", 4000, bad=range(3000, 3100))
    bare = without_label(tmp_path / "test.txt", labeled.read_text().splitlines())
    summary = run(tiny_run(tmp_path, log, data={"predict": str(bare), "max_bad_lines": 0.01, "rows_per_split": 500}))
    assert summary.state == "FAILED" and summary.error is not None
    assert "data.predict: " in summary.error and "max_bad_lines allows 40 of 4000 rows" in summary.error
    assert f"{bare}:3001: I1: found 'many'" in summary.error
    assert summary.samples.trained == 640 and summary.predictions is not None
    assert summary.predictions.rejected_lines > 40 and 0 < summary.predictions.rows <= 3900
    found = list((tmp_path / "runs/run/predictions").iterdir())
    assert len(found) == summary.predictions.parts and all(path.suffix == ".parquet" for path in found)
    assert predictions(tmp_path).num_rows == summary.predictions.rows
