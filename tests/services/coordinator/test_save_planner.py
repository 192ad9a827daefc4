"""The planner of a living run: the mean time between failures that it plans with, and what the run says of it."""

from __future__ import annotations

import math

import pytest

from checkpoint.mtbf import estimate_mtbf
from checkpoint.piece import Piece
from services.config_file import load_config
from services.coordinator.save_planner import SavePlanner


def test_the_mean_time_between_failures_has_its_interval() -> None:
    config = load_config(None, ["checkpoint.mtbf_s=1000"])
    planner = SavePlanner(config, [[Piece("t", 0, 100, 0, 16)], [Piece("t", 100, 200, 0, 16)]], [2])
    planner.replan(600.0, 1000, 10_000)
    assert planner.mtbf_s == 1600.0
    assert (planner.observed_mtbf.low_s, planner.observed_mtbf.high_s) == (pytest.approx(600 / math.log(20)), math.inf)
    planner.row_losing_failures = 3
    planner.replan(600.0, 1000, 10_000)
    assert planner.mtbf_s == 400.0
    assert planner.observed_mtbf == estimate_mtbf(3, 600.0)
    assert planner.observed_mtbf.low_s < 200.0 < planner.observed_mtbf.high_s < math.inf
