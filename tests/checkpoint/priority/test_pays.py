"""Priority pays: rows trained by fbgemm, lost, and compared with what each strategy saved at equal bytes."""

from __future__ import annotations

import pytest

from benchmarks import priority


@pytest.mark.parametrize("strategy", ["mfu", "ssu"])
def test_under_sgd_counts_and_recent_rows_beat_saving_everything(sgd: priority.Result, strategy: str) -> None:
    found = sgd["strategies"][strategy]
    assert found["ratio_95"][1] < 1.0  # the whole interval, five paired seeds
    assert found["bytes_ratio"] <= 1.0
    assert sgd["strategies"]["scar"]["ratio"] <= found["ratio"]


def test_under_adagrad_its_own_state_does() -> None:
    found = priority.measure("exact_row_wise_adagrad", 5, 20_000, 64, 3)["strategies"]
    assert found["adagrad"]["ratio_95"][1] < 1.0
    assert found["adagrad"]["bytes_ratio"] <= 1.0
    assert found["adagrad"]["ratio"] < found["mfu"]["ratio"]


@pytest.fixture(scope="module")
def sgd() -> priority.Result:
    return priority.measure("exact_sgd", 5, 20_000, 64, 3)
