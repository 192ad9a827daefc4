"""Retention deletes nothing that a kept save needs, nor what a full recovery would take."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.catalog import SaveCatalog
from checkpoint.chain import choose
from checkpoint.errors import SaveNotFound
from checkpoint.manifest import TableSpec
from checkpoint.retention import RetentionPolicy
from checkpoint.retry import RetryPolicy
from checkpoint.store import CheckpointStore
from tests.checkpoint.saves import write_save

TABLES = {"t": TableSpec(rows=3, dim=2, dtype="fp32", optimizer="exact_sgd")}

saves = st.tuples(st.sampled_from(["full", "delta", "priority"]), st.booleans())
histories = st.lists(st.one_of(saves, st.just("crash"), st.integers(0, 3)), min_size=1, max_size=14)


def write(url: Path, history: list[object]) -> None:
    """Saves, crashed ones, and rollbacks by so many saves; what cannot be is left out."""
    sequence = timeline = 0
    for event in history:
        seen = [save.save_id for save in SaveCatalog(str(url), run="r").list()]
        if isinstance(event, int):
            if seen:
                timeline = CheckpointStore(str(url), run="r").open_timeline(seen[max(0, len(seen) - 1 - event)])
            continue
        sequence += 1
        if event == "crash":
            (url / "saves" / f"{timeline:04d}-{sequence:08d}-full").mkdir(parents=True)
            continue
        kind, consistent = event  # type: ignore[misc]
        if kind == "full" or seen:
            save_id = f"{timeline:04d}-{sequence:08d}-{kind}"
            parent = None if kind == "full" else seen[-1]
            write_save(url, save_id, TABLES, [], parent=parent, consistent=consistent)


def newest(url: Path, *, exact: bool) -> tuple[str, ...] | None:
    try:
        return choose(SaveCatalog(str(url), run="r").list(), exact=exact).chain.save_ids
    except SaveNotFound:
        return None


@settings(max_examples=150, deadline=None)
@given(histories, st.integers(1, 3), st.sampled_from([None, 2.0]), st.booleans())
def test_what_can_be_restored_stays_so(
    history: list[object], keep_last: int, keep_every_s: float | None, sweep: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = Path(folder)
        write(url, history)
        before = [newest(url, exact=exact) for exact in (False, True)]
        store = CheckpointStore(folder, run="r")
        visible = {save.save_id for save in store.list()}
        fulls = [save.save_id for save in store.list() if save.kind == "full"]
        deleted = store.retain(RetentionPolicy(keep_last, keep_every_s))
        if sweep:
            store.sweep()
        assert [newest(url, exact=exact) for exact in (False, True)] == before
        left = SaveCatalog(folder, run="r").list()
        assert {save.save_id for save in left} == visible - set(deleted)
        assert {*fulls[-keep_last:]} <= {save.save_id for save in left}
        for save in left:
            assert choose(left, save_id=save.save_id).chain.newest == save
        assert not store.retain(RetentionPolicy(keep_last, keep_every_s))
        next_ = store.begin(
            "full", timeline=max(store._timeline_records(), default=0), samples=0, consistent=True, tables=TABLES,
            parent=None,
        )  # fmt: skip
        assert next_.sequence > max((save.sequence for save in left), default=0)


def test_a_consistent_priority_save_is_nothing_that_a_full_recovery_could_take(tmp_path: Path) -> None:
    write_save(tmp_path, "0000-00000001-full", TABLES, [])
    write_save(tmp_path, "0000-00000002-full", TABLES, [], consistent=False)
    write_save(tmp_path, "0000-00000003-priority", TABLES, [], parent="0000-00000002-full")
    assert CheckpointStore(str(tmp_path), run="r").retain(RetentionPolicy(keep_last=1)) == []
    assert newest(tmp_path, exact=True) == ("0000-00000001-full",)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_nonsense_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="keep_every_s must be positive"):
        RetentionPolicy(2, value)
    if value:
        with pytest.raises(ValueError, match="0 ≤ first_delay_s"):
            RetryPolicy(5, value, 5.0)
