"""Whole small runs on one Ray: row accounting, bad input, refusals, evaluations, determinism."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.config import RunConfig
from services.driver import run
from services.progress import Progress
from services.ray_session import ray_session
from services.summary import Summary
from tests.services.run_tools import click_log, events, tiny_run

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_left")]


@pytest.fixture(scope="module", autouse=True)
def ray_for_all() -> Iterator[None]:
    with ray_session(RunConfig.model_validate({"cluster": {"trainers": 6, "shards": 4}})):
        yield


@pytest.mark.parametrize(
    ("readers", "threads"),
    [(2, 2), pytest.param(1, 2, marks=pytest.mark.slow), pytest.param(1, 1, marks=pytest.mark.slow)],
)
def test_every_row_is_trained_once_an_epoch_and_the_uneven_end_does_not_hang(
    tmp_path: Path, readers: int, threads: int
) -> None:
    log = click_log(tmp_path / "clicks.tsv", 1001)
    seen: list[Progress] = []
    summary = run(
        tiny_run(
            tmp_path,
            log,
            data={"reader_threads": readers, "rows_per_split": 100},
            train={"epochs": 2, "hogwild_threads": threads},
            cluster={"trainers": 2, "shards": 2},
        ),
        seen.append,
    )
    assert (summary.state, summary.error) == ("SUCCEEDED", None)
    assert summary.samples.model_dump() == {
        "trained": 2002, "lost": 0, "repeated": 0, "skipped": 0, "rejected_lines": 0
    }  # fmt: skip
    assert summary.metrics is not None and summary.metrics.auc is None and summary.best is None
    assert summary.metrics.progressive_logloss is not None and summary.metrics.progressive_logloss < 1.0
    assert summary.sync is not None and (summary.sync.mode, summary.failures) == ("foreground", ())
    assert summary.startup_s > 0 and summary.wall_s > summary.startup_s
    assert Summary.read(tmp_path / "runs/run/summary.json") == summary
    assert seen[0].state == "STARTING" and any(progress.shards == 2 for progress in seen)
    stages = [event["stage"] for event in events(tmp_path, "stage")]
    assert stages[-2:] == ["training", "finishing"]


def test_bad_lines_under_the_limit_are_quarantined_and_evaluations_come_as_asked(tmp_path: Path) -> None:
    bad = [3, 150, 151, 999]  # the last one is held out
    log = click_log(tmp_path / "clicks.tsv", 1000, bad)
    summary = run(
        tiny_run(
            tmp_path,
            log,
            data={"eval_fraction": 0.2, "rows_per_split": 100, "max_bad_lines": 0.004},
            train={"epochs": 2, "eval_every_samples": 400},
        )
    )
    assert (summary.state, summary.error) == ("SUCCEEDED", None)
    assert summary.samples.model_dump() == {
        "trained": 2 * 797, "lost": 0, "repeated": 0, "skipped": 0, "rejected_lines": 4
    }  # fmt: skip
    rejected = [json.loads(line) for line in (tmp_path / "runs/run/rejected.jsonl").read_text().splitlines()]
    assert sorted((line["path"], line["line"], line["column"]) for line in rejected) == [
        (str(log), row + 1, "I1") for row in bad
    ]
    lines = [json.loads(line) for line in (tmp_path / "runs/run/metrics.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if "auc" in line]
    assert [one["at_samples"] for one in rounds] == [397, 797, 797 + 397, 2 * 797]
    assert all(one["eval_samples"] == 199 and 0 < one["auc"] < 1 for one in rounds)
    assert summary.metrics is not None and summary.best is not None
    assert (summary.metrics.auc, summary.metrics.eval_samples) == (rounds[-1]["auc"], 199)
    assert summary.best.auc == max(one["auc"] for one in rounds)
    assert summary.best.at_samples in [one["at_samples"] for one in rounds if one["auc"] == summary.best.auc]


def test_bad_lines_over_the_limit_fail_the_run_and_are_listed(tmp_path: Path) -> None:
    log = click_log(tmp_path / "clicks.tsv", 1000, bad=range(100, 130))
    summary = run(tiny_run(tmp_path, log, data={"max_bad_lines": 0.01}))
    assert summary.state == "FAILED" and summary.error is not None
    assert "input lines were rejected, data.max_bad_lines allows 10" in summary.error
    assert f"{log}:101: I1: found 'many'" in summary.error
    assert summary.samples.rejected_lines > 10
    assert (tmp_path / "runs/run/rejected.jsonl").read_text().count('"line": 101,') == 1


def test_too_many_bad_batches_fail_the_run_and_are_listed(tmp_path: Path) -> None:
    log = click_log(tmp_path / "clicks.tsv", 640)
    summary = run(
        tiny_run(
            tmp_path,
            log,
            dense={"optimizer": "sgd", "learning_rate": 1e38, "decay": "none"},  # the first step breaks the model
            train={"max_bad_batches": 2, "lookahead": 0},
        )
    )
    assert summary.state == "FAILED" and summary.error is not None
    assert "train.max_bad_batches allows 2" in summary.error
    assert f"{log} rows 64-127: loss " in summary.error
    bad = events(tmp_path, "bad_batch")
    assert len(bad) == 3 and bad[0]["where"] == f"{log} rows 64-127"
    assert summary.samples.trained == 64 and summary.samples.skipped >= 3 * 64


def test_tables_over_the_memory_budget_are_refused_with_the_numbers(tmp_path: Path) -> None:
    log = click_log(tmp_path / "clicks.tsv", 100)
    summary = run(tiny_run(tmp_path, log, cluster={"memory_budget_bytes": 50_000}))
    assert summary.state == "FAILED" and summary.error is not None
    assert "cluster.memory_budget_bytes" in summary.error and "128 rows × 4" in summary.error
    assert "budget" in summary.error and "short of" in summary.error
    assert "loading rows" not in [event["stage"] for event in events(tmp_path, "stage")], "nothing was allocated"
    assert summary.samples.trained == 0 and summary.failures == ()


def test_a_run_that_fits_nowhere_is_refused_with_the_numbers(tmp_path: Path) -> None:
    log = click_log(tmp_path / "clicks.tsv", 100)
    summary = run(tiny_run(tmp_path, log, cluster={"trainers": 50}))
    assert summary.state == "FAILED" and summary.error is not None
    assert "50 trainers × 1 CPUs need 51" in summary.error and "cluster.trainers" in summary.error
    assert Summary.read(tmp_path / "runs/run/summary.json").state == "FAILED"


def test_two_deterministic_runs_are_equal_to_the_last_digit(tmp_path: Path) -> None:
    log = click_log(tmp_path / "clicks.tsv", 3000)
    found = [
        run(
            tiny_run(
                tmp_path / name,
                log,
                data={"eval_fraction": 0.3, "rows_per_split": 500},
                train={"deterministic": True, "lookahead": 0, "precision": "fp32", "epochs": 2, "batch_size": 32},
                dense={"optimizer": "adam", "warmup_samples": 500, "decay": "linear"},
                embedding={"decay": "linear"},
                cluster={"shards": 2},
            )
        )
        for name in ("first", "second")
    ]
    assert [summary.state for summary in found] == ["SUCCEEDED"] * 2
    assert found[0].metrics is not None and found[0].metrics.auc is not None
    assert found[0].metrics == found[1].metrics
    assert found[0].best == found[1].best and found[0].samples == found[1].samples
    assert found[0].metrics.auc > 0.52, "it learns, so equal figures say something"


def test_multi_hot_features_with_vocabularies_train(tmp_path: Path) -> None:
    folder = tmp_path / "ml"
    folder.mkdir()
    (folder / "u.user").write_text("".join(f"{u}|{20 + u}|{'MF'[u % 2]}|writer|{u:05}\n" for u in range(1, 21)))
    flags = ["|".join(str(int(i % (g + 1) == 0)) for g in range(19)) for i in range(30)]
    (folder / "u.item").write_text(
        "".join(f"{i + 1}|Film {i}|01-Jan-1995||http://x|{flags[i]}\n" for i in range(30)), encoding="latin-1"
    )
    ratings = [(1 + n % 20, 1 + (7 * n) % 30, 1 + (n * n) % 5, 874724710 + n) for n in range(700)]
    (folder / "u.data").write_text("".join("\t".join(map(str, row)) + "\n" for row in ratings))
    summary = run(
        tiny_run(
            tmp_path,
            folder,
            data={
                "format": "movielens",
                "eval_fraction": 0.1,
                "rows_per_split": 90,
                "categories": {"encoding": "vocabulary"},
            },
            embedding={"sharding": "row_wise"},
            cluster={"shards": 2},
        )
    )
    assert (summary.state, summary.error) == ("SUCCEEDED", None)
    assert (summary.samples.trained, summary.samples.repeated) == (630, 0)
    assert summary.metrics is not None and summary.metrics.eval_samples == 70
    assert any((tmp_path / "runs/run/vocabulary").iterdir())
