"""What a shard's process takes beside its rows and optimizer state, on a real Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.config import RunConfig
from services.driver import run
from services.ray_session import ray_session
from tests.services.run_tools import events, tiny_run
from trainer.data.synth import synthesize

pytestmark = pytest.mark.timeout(180)

ALLOWED_BYTES = 450_000_000
"""For Python, Ray, torch, fbgemm, the slabs and what a step allocates."""

CLUSTER = {"trainers": 2, "shards": 2, "wire": "bf16"}
MODEL = {"embedding_dim": 16, "dense_arch": [64, 16], "over_arch": [64, 1]}


@pytest.fixture(scope="module", autouse=True)
def ray_for_all() -> Iterator[None]:
    with ray_session(RunConfig.model_validate({"cluster": CLUSTER})):
        yield


@pytest.mark.parametrize(
    ("table_rows", "batch_size"), [(50_000, 2048), pytest.param(600_000, 2048, marks=pytest.mark.slow)]
)
def test_a_shard_takes_little_beside_its_rows(tmp_path: Path, table_rows: int, batch_size: int) -> None:
    log = tmp_path / "clicks"
    synthesize(log, rows=150 * batch_size, seed=0, max_table_rows=table_rows, format="parquet", files=4)
    summary = run(
        tiny_run(
            tmp_path,
            log,
            data={"format": "parquet", "categories": {"rows": table_rows}},
            model=MODEL,
            train={"batch_size": batch_size, "precision": "bf16"},
            cluster=CLUSTER,
        )
    )
    assert (summary.state, summary.error) == ("SUCCEEDED", None)
    assert summary.shards is not None and [shard.shard_id for shard in summary.shards] == [0, 1]
    for shard in summary.shards:
        held = shard.rows_bytes + shard.optimizer_bytes
        print(f"{table_rows:,} rows a table: {shard}; {shard.peak_rss_bytes - held:,} bytes beside rows and state")
        assert held == 13 * table_rows * (16 + 1) * 4
        assert 0.9 * held < shard.peak_rss_bytes <= held + ALLOWED_BYTES
    (placed,) = events(tmp_path, "placed")
    counters = sum(table["counter_bytes"] for table in placed["tables"])
    estimated = sum(node["needed_bytes"] for node in placed["nodes"])
    assert estimated - counters == sum(shard.rows_bytes + shard.optimizer_bytes for shard in summary.shards)
