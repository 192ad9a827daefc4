"""Saves that are not begun: nobody could use what they would leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint.checkpoint_config import CheckpointConfig
from checkpoint.manifest import TableSpec
from checkpoint.save_policy import SaveOrder
from checkpoint.store import CheckpointStore
from services.coordinator.directory import Directory, Entry
from services.coordinator.run_state import RunState
from services.coordinator.save_round import SaveAbandonedError, SaveRound
from services.identity import Address, Role

TABLES = {"t": TableSpec(rows=4, dim=2, dtype="fp32", optimizer="exact_sgd")}
ROLES: tuple[Role, ...] = ("shard", "trainer")


def never() -> RunState:
    raise AssertionError("it was begun")


@pytest.mark.parametrize(
    ("ready", "why"), [("shard", "every trainer is being replaced"), ("trainer", r"shards \[0\] are being")]
)
def test_a_save_without_rows_or_dense_state_is_not_begun(tmp_path: Path, ready: Role, why: str) -> None:
    directory = Directory()
    for role in ROLES:
        directory.put(Entry(Address(role, 0, 1), None, "node", ready=role == ready))
    store = CheckpointStore(str(tmp_path), run="r")
    take = SaveRound(CheckpointConfig(), directory, store, TABLES, [0], never, lambda phase: None).take
    for order in (SaveOrder("full", consistent=True), SaveOrder("full", consistent=False)):
        with pytest.raises(SaveAbandonedError, match=why):
            take(order, 0, None)
    assert not list(tmp_path.iterdir())
