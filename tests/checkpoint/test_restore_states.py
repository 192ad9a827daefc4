"""Rows and states come from one save: damage to either falls back for both; of older saves only the rows count."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from checkpoint.errors import SaveNotFound
from checkpoint.restore import restore_newest
from checkpoint.store import CheckpointStore
from checkpoint.verify import verify
from tests.checkpoint.saves import Table, write_save
from tests.checkpoint.small_run import DELTA_2, DELTA_3, FULL, three_tables

DENSE = "dense/trainer-0"
FILE = "state-dense.trainer-0.safetensors"


def _saved(url: Path, states: tuple[str, ...] = (DENSE, "rng")) -> tuple[CheckpointStore, Table]:
    """Three saves; in the n-th, row n - 1 and every state are n."""
    table = three_tables("exact_sgd")[0]
    for number, (save_id, parent) in enumerate(((FULL, None), (DELTA_2, FULL), (DELTA_3, DELTA_2)), 1):
        table.weight[number - 1] = number
        ids = None if parent is None else torch.tensor([number - 1])
        rows = table.cut(table.piece(0, 1003), ids, cut=number)
        dense = {name: {"model.w": torch.full((3,), float(number))} for name in states}
        write_save(url, save_id, {"big": table.spec}, [[rows]], parent=parent, samples=number, states=dense)
    return CheckpointStore(str(url), run="r"), table


def _flip(url: Path, save_id: str, name: str) -> None:
    path = url / "saves" / save_id / name
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)


def test_rows_and_states_of_the_newest_save(tmp_path: Path) -> None:
    store, table = _saved(tmp_path)
    rows = table.room(table.piece(0, 1003))
    restored = restore_newest(store, [rows], states=(DENSE, "rng"))
    table.assert_equal(rows)
    assert (restored.save_ids[-1], restored.skipped) == (DELTA_3, ())
    assert {name: state["model.w"].tolist() for name, state in restored.states.items()} == {
        DENSE: [3.0] * 3,
        "rng": [3.0] * 3,
    }


@pytest.mark.parametrize("file", [FILE, "shard-0000.safetensors"])
def test_damage_to_either_falls_back_for_both(tmp_path: Path, file: str) -> None:
    store, table = _saved(tmp_path)
    _flip(tmp_path, DELTA_3, file)
    rows = table.room(table.piece(0, 1003))
    restored = restore_newest(store, [rows], states=(DENSE,))
    assert restored.save_ids == (FULL, DELTA_2)
    assert restored.states[DENSE]["model.w"].tolist() == [2.0] * 3
    assert rows.weights[1].tolist() == [2.0] * 12
    assert rows.weights[2].tolist() != [3.0] * 12
    assert [skipped.save_id for skipped in restored.skipped] == [DELTA_3]
    assert f"save {DELTA_3}, file {file}: checksum" in str(restored)


def test_a_state_that_was_not_asked_for_is_not_read(tmp_path: Path) -> None:
    store, table = _saved(tmp_path)
    _flip(tmp_path, DELTA_3, FILE)
    assert restore_newest(store, [], states=("rng",)).samples == 3
    assert restore_newest(store, [table.room(table.piece(0, 9))]).samples == 3


def test_a_state_in_no_save_is_refused_with_those_there_are(tmp_path: Path) -> None:
    store, table = _saved(tmp_path)
    with pytest.raises(SaveNotFound, match=r"none of 3 saves .* no state 'center'; it has 'dense/trainer-0', 'rng'"):
        restore_newest(store, [table.room(table.piece(0, 9))], states=("center",))


@pytest.mark.parametrize("gone", [False, True], ids=["flipped", "missing"])
def test_of_older_saves_only_the_rows_count(tmp_path: Path, gone: bool) -> None:
    store, table = _saved(tmp_path)
    for save_id in (FULL, DELTA_2):
        _flip(tmp_path, save_id, FILE)
        if gone:
            (tmp_path / "saves" / save_id / FILE).unlink()
    report = verify(store)
    assert [bool(save.faults) for save in report.saves] == [True, True, False]
    assert [save.unusable is None for save in report.saves] == [False, False, True]
    assert (report.newest, report.newest_exact, report.ok) == (DELTA_3, DELTA_3, False)
    rows = table.room(table.piece(0, 1003))
    restored = restore_newest(store, [rows], states=(DENSE,), exact=True)
    table.assert_equal(rows)
    assert (restored.save_ids[-1], restored.skipped) == (report.newest, ())


def test_damaged_rows_of_an_older_save_do_count(tmp_path: Path) -> None:
    store, _ = _saved(tmp_path)
    _flip(tmp_path, DELTA_2, "shard-0000.safetensors")
    _flip(tmp_path, FULL, FILE)
    report = verify(store)
    assert [save.unusable is None for save in report.saves] == [False, False, False]
    assert report.saves[2].faults == ()
    assert report.saves[2].unusable is not None
    assert f"it continues {DELTA_2}, and save {DELTA_2}, file shard-0000" in report.saves[2].unusable
    assert report.newest is None
    with pytest.raises(SaveNotFound, match="none of 3 saves can be used"):
        restore_newest(store, [three_tables("exact_sgd")[0].room(three_tables()[0].piece(0, 9))], states=(DENSE,))
