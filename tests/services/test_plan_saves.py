"""What ``penumbra plan`` says about saves: bytes by hand, what a failure loses, costs set and estimated, settings."""

from __future__ import annotations

import pytest

from checkpoint.piece import Piece
from services.cli.output import show
from services.cli.tables import placement_view
from services.config_file import ConfigError, load_config
from services.placement_report import PlacementReport
from services.plan_saves import plan_saves
from services.saves_report import SavesReport

HOUR = 3600.0
PIECES = (
    (Piece("big", 0, 60_000, 0, 16), Piece("small", 0, 100, 0, 16)),
    (Piece("big", 60_000, 80_000, 0, 16),),
    (),
)
ROW_BYTES = 16 * 4 + 4
HEADLINE = [
    *("expected_run_s=201600", "mtbf_s=100800", "costs.save_s=330", "costs.load_s=150", "costs.reschedule_s=150"),
    *("costs.partial_load_s=150", "costs.partial_reschedule_s=150"),
]


def report(*settings: str, shards_per_node: tuple[int, ...] = (3,), embedding: tuple[str, ...] = ()) -> SavesReport:
    overrides = [*(f"checkpoint.{item}" for item in settings), *(f"embedding.{item}" for item in embedding)]
    return plan_saves(load_config(None, overrides), PIECES, shards_per_node)


def test_bytes_are_those_of_rows_and_state() -> None:
    found = report()
    assert found.full_bytes == 80_100 * ROW_BYTES
    assert found.prioritized == ("big",)
    assert found.save_bytes == 80_000 * (ROW_BYTES + 8) // 8 + 100 * ROW_BYTES  # ids beside the chosen rows
    assert found.tracker_bytes == 4 * 80_000
    assert report("strategy=cpr_scar").tracker_bytes == 80_000 * 64
    assert report("strategy=cpr_ssu").tracker_bytes == 4 * (60_000 // 8 + 20_000 // 8)
    vanilla = report("strategy=partial_vanilla")
    assert (vanilla.save_bytes, vanilla.tracker_bytes, vanilla.prioritized) == (vanilla.full_bytes, 0, ())
    assert report("encoding=int8").full_bytes == 80_100 * (16 + 8 + 4)
    assert report(embedding=("weights_precision=fp16",)).full_bytes == 80_100 * (32 + 4)
    assert report(embedding=("optimizer=exact_adagrad",)).full_bytes == 80_100 * 128


def test_the_largest_shard_is_what_a_save_waits_for() -> None:
    found = report("costs.save_bytes_per_s=1e6", "costs.load_bytes_per_s=2e6", "costs.load_s=7")
    largest = 60_100 * ROW_BYTES
    assert found.costs.save_s == pytest.approx(largest / 1e6)
    assert (found.costs.load_s, found.costs.partial_load_s) == (7.0, pytest.approx(largest / 2e6))
    assert found.costs.estimated == ("save_s", "partial_load_s")


def test_a_failure_takes_a_node_or_on_one_node_a_shard() -> None:
    one = report()
    assert (one.loses, one.mean_share, one.worst_share) == (
        "shard",
        pytest.approx(1 / 3),
        pytest.approx(60_100 / 80_100),
    )
    two = report(shards_per_node=(1, 2))
    assert (two.loses, two.mean_share) == ("node", 0.5)
    assert two.worst_share == pytest.approx(60_100 / 80_100)


def test_both_intervals_and_the_choice() -> None:
    found = report(*HEADLINE, "pls_budget=0.05")
    assert found.full.interval_s / HOUR == pytest.approx(2.27, abs=0.005)
    assert found.full.overhead.total == pytest.approx(0.0839, abs=5e-5)
    assert found.partial.interval_s == pytest.approx(0.05 * 56 * HOUR * 80_100 / 60_100)  # the worst single loss
    assert (found.mode, found.strategy, found.full_every_s) == ("partial", "cpr_adagrad", 4 * found.partial.interval_s)
    assert found.partial.exact_expected_pls is not None
    assert found.partial.exact_expected_pls <= found.partial.expected_pls <= 0.05
    assert report(*HEADLINE, "pls_budget=0.001").mode == "full"
    assert report("full_every_rounds=null", "max_consistent_age_s=null").full_every_s is None
    assert report("full_every_rounds=null").full_every_s == HOUR


def test_the_view_has_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    placed = PlacementReport(tables=(), nodes=(), saves=report(*HEADLINE, "pls_budget=0.05"))
    show(placement_view(placed), "", as_json=False)
    text = " ".join(capsys.readouterr().out.split())
    assert "full 2.27 h sqrt(2·save·MTBF) 4.05 % 0.298 % 4.05 % 8.39 %" in text
    assert "partial 3.73 h the worst single loss" in text
    assert "saves: cpr_adagrad" in text
    assert "a run of 56.00 h, where rows are lost every 28.00 h (checkpoint.mtbf_s) with one shard" in text
    assert PlacementReport.model_validate_json(placed.model_dump_json()) == placed


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"unknown key checkpoint\.pls_buget; did you mean checkpoint\.pls_budget"):
        load_config(None, ["checkpoint.pls_buget=0.1"])
    with pytest.raises(
        ConfigError, match=r"one of auto, full, partial_vanilla, cpr_scar, cpr_mfu, cpr_ssu, cpr_adagrad"
    ):
        load_config(None, ["checkpoint.strategy=mfu"])
    with pytest.raises(ConfigError, match=r"cpr_adagrad reads the state of an Adagrad, but embedding\.optimizer is"):
        load_config(None, ["checkpoint.strategy=cpr_adagrad", "embedding.optimizer=exact_sgd"])
    with pytest.raises(ConfigError, match=r"checkpoint\.pls_budget must be a number, at least 0 and at most 1"):
        load_config(None, ["checkpoint.pls_budget=1.5"])
    with pytest.raises(ConfigError, match=r"budget of 0 allows no partial recovery; set checkpoint\.strategy=full"):
        load_config(None, ["checkpoint.pls_budget=0"])
