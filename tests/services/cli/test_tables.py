from __future__ import annotations

import io
import re

from rich.console import Console, RenderableType

from services.cli.tables import placement_view, summary_view
from services.placement_report import NodeMemory, PlacementReport, TablePlacement
from services.summary import BestMetrics, Failure, Metrics, Phases, PredictionSummary, Samples, Summary, SyncSummary


def _text(view: RenderableType, width: int = 140) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(view)
    return stream.getvalue()


SUMMARY = Summary(
    run="demo",
    state="FAILED",
    error="shard 1 died [SIGKILL]",
    samples=Samples(trained=1_234_567, lost=11, repeated=22, skipped=33, rejected_lines=44),
    wall_s=100.0,
    startup_s=8.0,
    throughput_samples_per_s=54_321.0,
    phases_s=Phases(input=1, lookup_wait=1, dense=1, push=0, sync_stall=0, other=0),
    metrics=Metrics(auc=0.7546, ne=0.81, logloss=0.49, accuracy=0.78, eval_samples=1000, progressive_logloss=0.5012),
    best=BestMetrics(auc=0.7551, eval_samples=1000, at_samples=500_000),
    sync=SyncSummary(mode="foreground", algorithm="easgd", syncs=77, avg_gap=4.0, elp=1024),
    failures=(Failure(role="shard", index=1, cause="SIGKILL", at_samples=600_000, detect_s=0.12),),
)


def test_summary_shows_quality_samples_speed_phases_and_failures() -> None:
    text = _text(summary_view(SUMMARY))
    expected = (
        "demo",
        "FAILED",
        "shard 1 died [SIGKILL]",
        "0.7546",
        "0.7551",
        "500,000",
        "0.5012",
        "1,234,567 trained",
    )
    for part in (*expected, "22 repeated", "11 lost", "33 skipped", "54,321 samples/s", "77 syncs", "0.12 s"):
        assert part in text, part


def test_summary_shows_predictions_where_there_are_any() -> None:
    assert "predictions" not in _text(summary_view(SUMMARY))
    found = PredictionSummary(directory="predictions", files=2, parts=3, rows=12_345, rejected_lines=6)
    text = _text(summary_view(SUMMARY.model_copy(update={"predictions": found})))
    assert "12,345 rows of 2 files, 6 lines rejected; 3 Parquet files in predictions/ of the run directory" in text
    broken = found.model_copy(update={"not_finite_rows": 1000})
    assert "6 lines rejected, 1,000 NaN;" in _text(summary_view(SUMMARY.model_copy(update={"predictions": broken})))


def test_placement_shows_what_a_person_should_know() -> None:
    node = NodeMemory(node="a", shard_ids=(0,), rows=1, needed_bytes=1, budget_bytes=2)
    text = _text(placement_view(PlacementReport(tables=(), nodes=(node,), warnings=("rows are rounded",))))
    assert text.rstrip().endswith("rows are rounded")


def test_printed_phases_add_up() -> None:
    shares = [float(share) for share in re.findall(r"([\d.]+) %$", _text(summary_view(SUMMARY)), re.MULTILINE)]
    assert len(shares) == 7
    assert round(sum(shares[:-1]), 6) == shares[-1] == 100.0


def test_summary_of_a_run_that_never_trained() -> None:
    text = _text(summary_view(Summary(run="r", state="CANCELLED")))
    assert "CANCELLED" in text
    assert "quality" not in text
    assert "phase" not in text


def test_summary_fits_a_narrow_terminal() -> None:
    assert max(map(len, _text(summary_view(SUMMARY), width=80).splitlines())) <= 80


def test_neighbouring_shards_are_one_range() -> None:
    tables = [
        TablePlacement(
            table=f"C{number}",
            rows=9,
            dim=4,
            placement="row_wise",
            shard_ids=ids,
            weight_bytes=144,
            optimizer_bytes=36,
        )
        for number, ids in enumerate([tuple(range(30)), (4, 5, 6, 8, 9, 31), (7,), (2, 1, 0)])
    ]
    node = NodeMemory(node="n", shard_ids=tuple(range(32)), rows=36, needed_bytes=1, budget_bytes=2)
    text = _text(placement_view(PlacementReport(tables=tuple(tables), nodes=(node,))))
    cells = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    assert [row[4] for row in cells if row[0] in ("C0", "C1", "C2", "C3")] == ["0–29", "4–6, 8, 9, 31", "7", "0–2"]
    assert [row[1] for row in cells if row[0] == "n"] == ["0–31"]


def test_placement_shows_every_table_and_node_and_the_totals() -> None:
    report = PlacementReport(
        tables=(
            TablePlacement(
                table="C1",
                rows=1_000_000,
                dim=16,
                placement="row_wise",
                shard_ids=(0, 1),
                weight_bytes=64_000_000,
                optimizer_bytes=4_000_000,
            ),
            TablePlacement(
                table="C2",
                rows=3,
                dim=16,
                placement="table_wise",
                shard_ids=(1,),
                weight_bytes=192,
                optimizer_bytes=12,
                counter_bytes=12,
            ),
        ),
        nodes=(
            NodeMemory(node="10.0.0.1", shard_ids=(0,), rows=500_000, needed_bytes=2**30, budget_bytes=2**31),
            NodeMemory(node="10.0.0.2", shard_ids=(1,), rows=500_003, needed_bytes=2**32, budget_bytes=2**31),
        ),
    )
    text = _text(placement_view(report))
    for part in ("1,000,000", "row_wise", "0, 1", "64.8 MiB", "216 B", "1,000,003", "50.0%", "200.0%", "10.0.0.2"):
        assert part in text, part
    assert not report.fits
    assert report.total_bytes == 68_000_216
