"""Where a lost shard's rows come from when there are no saves, some, or none that can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint.errors import SaveNotFound
from services.shard.restoring import RestoreOrder, fill
from tests.checkpoint.small_run import FULL, save_full, three_tables


def test_without_any_save_there_is_nothing_to_fill_from(tmp_path: Path) -> None:
    table = three_tables("exact_sgd")[0]
    room = table.room(table.piece(0, 1003))
    assert fill(RestoreOrder(str(tmp_path), "r"), [room]) is None
    assert bool(room.weights.isnan().all())


def test_saves_that_are_all_damaged_are_not_taken_for_none(tmp_path: Path) -> None:
    table, *others = three_tables("exact_sgd")
    save_full(tmp_path, [table, *others])
    manifest = tmp_path / "saves" / FULL / "manifest.json"
    text = manifest.read_bytes()
    order, room = RestoreOrder(str(tmp_path), "r"), table.room(table.piece(0, 1003))
    manifest.write_bytes(text[:-9])
    with pytest.raises(SaveNotFound, match=rf"no save can be used; {FULL}: .*without a checksum at the end"):
        fill(order, [room])
    manifest.write_bytes(text)
    assert fill(order, [room]) is not None
    table.assert_equal(room)
