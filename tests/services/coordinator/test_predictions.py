"""Predictions through the books: a death between two reports, malformed lines, a disk that takes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from services.config import RunConfig
from services.coordinator.accounts import Accounts, TooManyBadError
from services.coordinator.books import Books
from services.coordinator.predictions import Predictions, PredictionsError, notices
from services.coordinator.run_files import RunFiles
from services.coordinator.work_queue import WorkQueue
from services.identity import Address
from services.summary import PredictionSummary
from tests.services.run_tools import wait_until
from trainer.data.block import RejectedLine
from trainer.data.split import Lease, Split
from trainer.data.unlabeled import PredictPlan
from trainer.ledger import Commit, Report
from trainer.predictions import Scored

PLAN = PredictPlan((Split("a", 0, 10), Split("b", 0, 4)), ("a", "b"), (), 14, 1)


def books(folder: Path, max_bad_lines: float = 0.0) -> Books:
    queue = WorkQueue([], [], 1, None, PLAN.splits)
    predictions = Predictions(PLAN, folder / "predictions", max_bad_lines)
    return Books(queue, Accounts(0, 0), RunFiles(str(folder)), lambda address: True, predictions)


def lease(kept: Books, trainer_id: int, generation: int = 1) -> Lease:
    found = kept.lease(Address("trainer", trainer_id, generation))
    assert isinstance(found, Lease)
    return found


def report(one: Lease, start: int, end: int, probability: float, skip: tuple[int, ...] = ()) -> Report:
    rows = np.array([row for row in range(start, end) if row not in skip], np.int64)
    scored = Scored(one.lease_id, start, rows, np.full(len(rows), probability, np.float32))
    return Report([Commit(one.lease_id, start, end, len(rows), False)], scored=[scored] if len(rows) else [])


def test_what_a_dead_trainer_reported_is_kept_and_the_rest_is_done_once(tmp_path: Path) -> None:
    kept = books(tmp_path, max_bad_lines=0.2)
    first, second = lease(kept, 0), lease(kept, 1)
    one, two, successor = Address("trainer", 0, 1), Address("trainer", 1, 1), Address("trainer", 0, 2)
    bad = [RejectedLine("a", 1, "I1", "x", "y")]
    kept.report(one, 1, report(first, 0, 1, 0.0, skip=(0,)), bad)  # a span of nothing but a bad line
    kept.report(one, 2, report(first, 4, 6, 0.25), [])  # before the rows in front of it
    kept.report(one, 2, report(first, 4, 6, 0.25), [])  # its answer was late: sent again
    kept.report(two, 1, report(second, 0, 4, 0.75), [])
    assert kept.requeue(0) == 7
    again = lease(kept, 0, 2)
    assert again.ranges == ((1, 4), (6, 10))
    kept.report(successor, 1, report(again, 6, 10, 0.5), bad)
    assert sorted(path.name for path in (tmp_path / "predictions").glob("part*")) in (
        [],
        ["part-00001-000000000000.parquet"],
    )
    kept.report(successor, 2, report(again, 1, 4, 0.5), [])
    assert kept.done and kept.fatal is None and kept.counts.predicted == 13
    kept.settle()
    table = pq.read_table(tmp_path / "predictions")
    assert list(
        zip(table["file"].to_pylist(), table["row"].to_pylist(), table["probability"].to_pylist(), strict=True)
    ) == [
        *(("a", row, 0.25 if row in (4, 5) else 0.5) for row in range(1, 10)),
        *(("b", row, 0.75) for row in range(4)),
    ]
    assert kept.predictions is not None
    assert kept.predictions.summary() == PredictionSummary(
        directory="predictions", files=2, parts=2, rows=13, rejected_lines=1
    )
    assert kept.accounts.bad_lines == {} and (tmp_path / "rejected.jsonl").read_text().count("\n") == 1
    kept.close()


def test_malformed_lines_count_against_the_rows_to_predict_and_an_unfinished_part_leaves_nothing(
    tmp_path: Path,
) -> None:
    kept = books(tmp_path, max_bad_lines=0.1)
    one, address = lease(kept, 0), Address("trainer", 0, 1)
    lines = [RejectedLine("a", row, "C1", "'zz'", "8 hexadecimal digits") for row in (1, 2)]
    kept.report(address, 1, report(one, 0, 1, 0.0, skip=(0,)), lines[:1])
    assert kept.fatal is None
    kept.report(address, 2, report(one, 1, 3, 0.5, skip=(1,)), lines[1:])
    assert isinstance(kept.fatal, TooManyBadError)
    assert "data.predict: 2 input lines were rejected, max_bad_lines allows 1 of 14 rows" in str(kept.fatal)
    assert "a:1: C1: found 'zz', expected 8 hexadecimal digits" in str(kept.fatal)
    kept.close()
    assert not list((tmp_path / "predictions").glob("*"))
    assert len((tmp_path / "rejected.jsonl").read_text().splitlines()) == 2


def test_a_disk_that_takes_nothing_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "predictions").write_text("a file where the directory belongs")
    kept = books(tmp_path)
    one, two, address = lease(kept, 0), lease(kept, 0), Address("trainer", 0, 1)
    kept.report(address, 1, report(one, 0, 10, 0.5), [])
    wait_until(lambda: kept.predictions is not None and kept.predictions.error is not None, 20, "it cannot be written")
    kept.report(address, 2, report(two, 0, 4, 0.5), [])
    assert isinstance(kept.fatal, PredictionsError), "at the next report, not only at the end"
    with pytest.raises(PredictionsError, match=r"predictions: predictions cannot be written: .*File exists"):
        kept.settle()
    kept.close()


def test_nan_is_written_and_counted(tmp_path: Path) -> None:
    kept = books(tmp_path)
    address = Address("trainer", 0, 1)
    kept.report(address, 1, report(lease(kept, 0), 0, 10, float("nan")), [])
    kept.report(address, 2, report(lease(kept, 0), 0, 4, 0.5), [])
    kept.settle()
    assert kept.predictions is not None and kept.predictions.summary().not_finite_rows == 10
    assert np.isnan(pq.read_table(tmp_path / "predictions")["probability"].to_numpy()[:10]).all()
    assert json.loads(kept.predictions.summary().model_dump_json())["rows"] == 14


def test_notices_name_labels_and_separate_replicas() -> None:
    plan = PredictPlan((), ("a", "b", "c"), ("b", "c"), 1234, 1)
    config = RunConfig.model_validate({"cluster": {"trainers": 2}, "sync": {"mode": "none"}})
    said = notices(plan, config)
    assert said[:2] == [
        "1,234 rows to predict after training from 3 files",
        "data.predict: labels in b and 1 more are ignored",
    ]
    assert "sync.mode=none" in said[2] and len(notices(plan, RunConfig())) == 2
