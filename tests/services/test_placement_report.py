from __future__ import annotations

from checkpoint.piece import Piece
from services.placement.memory import MemoryCost, MemoryEstimate
from services.placement.placement import Placement
from services.placement_report import NodeMemory, PlacementReport, placement_report

PLACEMENT = Placement(
    pieces={
        0: (Piece("big", 0, 50, 0, 8), Piece("small", 0, 3, 0, 4)),
        1: (Piece("big", 50, 100, 0, 8),),
        2: (),
    },
    sharding={"big": "row_wise", "small": "table_wise"},
    memory=MemoryEstimate(
        tables={"big": MemoryCost(3200, 400, 400), "small": MemoryCost(48, 12, 12)},
        shards={0: MemoryCost(1648, 212, 212), 1: MemoryCost(1600, 200, 200), 2: MemoryCost()},
        nodes=(MemoryCost(3248, 412, 412), MemoryCost()),
        budget_bytes_per_node=(4072, 1000),
    ),
)


def test_report_says_where_tables_are_and_what_nodes_need() -> None:
    report = placement_report(PLACEMENT, ["a", "b"], [2, 1])
    big, small = report.tables
    assert (big.table, big.rows, big.dim, big.placement, big.shard_ids, big.total_bytes) == (
        *("big", 100, 8, "row_wise", (0, 1), 4000),
    )
    assert (small.rows, small.dim, small.shard_ids, small.total_bytes) == (3, 4, (0,), 72)
    assert report.nodes == (
        NodeMemory(node="a", shard_ids=(0, 1), rows=103, needed_bytes=4072, budget_bytes=4072),
        NodeMemory(node="b", shard_ids=(2,), rows=0, needed_bytes=0, budget_bytes=1000),
    )
    assert report.total_bytes == 4072
    assert report.fits


def test_report_survives_json() -> None:
    report = placement_report(PLACEMENT, ["a", "b"], [2, 1])
    assert PlacementReport.model_validate_json(report.model_dump_json()) == report
