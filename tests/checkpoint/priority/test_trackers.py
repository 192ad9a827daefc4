"""Trackers against counting in Python: what they select, what clearing forgets, what giving back brings."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from checkpoint.priority.adagrad import AdagradTracker
from checkpoint.priority.dirty import DirtyRows
from checkpoint.priority.mfu import MfuTracker
from checkpoint.priority.none import NoTracker
from checkpoint.priority.scar import ScarTracker
from checkpoint.priority.ssu import SsuTracker
from checkpoint.priority.tracker import PriorityTracker, Watched
from tests.checkpoint.priority.requests import PIECES, WATCHED, ids_of, request, zeros

USER, SITE = 0, 2


def _mfu(every: int = 1) -> MfuTracker:
    return MfuTracker(WATCHED, zeros(MfuTracker.tensor_specs(WATCHED)), every=every)


def _ssu(fraction: float = 0.125, every: int = 1) -> SsuTracker:
    return SsuTracker(WATCHED, zeros(SsuTracker.tensor_specs(WATCHED, fraction)), fraction, every=every)


def _dirty() -> DirtyRows:
    return DirtyRows(WATCHED, zeros(DirtyRows.tensor_specs(WATCHED)))


def _counted(numbers: range, piece: int) -> Counter[int]:
    return Counter(row for number in numbers for row in ids_of(piece, *request(number)))


def _most(counts: Counter[int], count: int) -> list[int]:
    return sorted(sorted((row for row in counts if counts[row] > 0), key=lambda row: (-counts[row], row))[:count])


def _state(tracker: PriorityTracker) -> list[list[float]]:
    return [tensor.tolist() for tensor in tracker.tensors().values()]


def test_mfu_selects_the_most_accessed_and_forgets_only_those() -> None:
    tracker = _mfu()
    for number in range(10):
        tracker.observe(*request(number))
    for piece in (USER, SITE):
        counts = _counted(range(10), piece)
        assert tracker.pending_accesses(piece) == counts.total()
        saved = tracker.select(piece, 20)
        assert saved.tolist() == _most(counts, 20)
        tracker.clear(piece, saved)
        for row in saved.tolist():
            counts[row] = 0
        assert tracker.pending_accesses(piece) == counts.total()
        assert tracker.select(piece, 1000).tolist() == _most(counts, 1000)  # no more than were accessed


def test_mfu_gets_its_counts_back_beside_what_came_since() -> None:
    tracker, undisturbed = _mfu(), _mfu()
    for number in range(4):
        tracker.observe(*request(number))
        undisturbed.observe(*request(number))
    undo = [tracker.clear(USER, tracker.select(USER, 30)), tracker.clear(SITE, slice(10, 60))]
    tracker.observe(*request(9))
    undisturbed.observe(*request(9))
    assert _state(tracker) != _state(undisturbed)
    for taken in undo:
        tracker.give_back(taken)
    assert _state(tracker) == _state(undisturbed)


def test_mfu_counts_one_push_in_four() -> None:
    tracker = _mfu(every=4)
    for _ in range(40):
        tracker.observe(*request(1))
    assert tracker.pending_accesses(USER) == 40 * len(ids_of(USER, *request(1)))


def test_mfu_that_does_not_see_every_push_saves_unseen_rows_in_turn() -> None:
    tracker = _mfu(every=4)
    for _ in range(4):
        tracker.observe(*request(1))
    counts = _counted(range(1, 2), USER)
    saved = tracker.select(USER, 100)
    assert saved.numel() == 100
    assert set(counts) <= set(saved.tolist())
    turn = [row for row in range(400) if row not in counts][: 100 - len(counts)]
    assert set(saved.tolist()) == set(counts) | set(turn)
    tracker.clear(USER, saved)
    again = tracker.select(USER, 100)
    assert again.tolist() == [(turn[-1] + 1 + step) % 400 for step in range(100)]  # nothing new was seen


def test_mfu_counters_do_not_overflow() -> None:
    memory = zeros(MfuTracker.tensor_specs(WATCHED))
    memory["access_counters"].fill_(2**31 - 1)
    tracker = MfuTracker(WATCHED, memory, every=1)
    tracker.observe(*request(1))
    assert int(memory["access_counters"].min()) == 2**30


def test_ssu_holds_recent_rows_each_once_within_its_bound() -> None:
    tracker = _ssu()
    seen: set[int] = set()
    for number in range(30):
        ids, offsets = request(number)
        tracker.observe(ids, offsets)
        seen |= set(ids_of(USER, ids, offsets))
        bound = PIECES[USER].rows // 8
        chosen = tracker.recent(USER).tolist()
        assert chosen == sorted(set(chosen))
        assert set(chosen) <= seen | {0}
        assert len(chosen) <= bound + 1  # and row 0
    assert len(chosen) > 0.9 * bound  # three times as many different rows as places were seen
    assert len(seen) > 3 * bound
    last = set(ids_of(USER, ids, offsets))
    assert len(last & set(chosen)) > 0.5 * len(last)  # a newcomer always gets in, and evicts whoever is there


def test_ssu_forgets_saved_rows_and_gets_them_back_unless_younger_ones_came() -> None:
    tracker = _ssu()
    for number in range(5):
        tracker.observe(*request(number))
    before = _state(tracker)
    saved = tracker.select(USER, 400)
    undo = [tracker.clear(USER, saved), tracker.clear(SITE, slice(0, PIECES[SITE].rows))]
    assert tracker.recent(USER).tolist() == [0]
    assert tracker.recent(SITE).tolist() == [0]
    for taken in undo:
        tracker.give_back(taken)
    assert _state(tracker) == before

    undo = [tracker.clear(USER, saved)]
    tracker.observe(*request(77))
    younger = set(tracker.recent(USER).tolist())
    tracker.give_back(undo[0])
    assert younger < set(tracker.recent(USER).tolist())


def test_what_the_list_leaves_of_a_save_goes_to_rows_in_turn() -> None:
    tracker = _ssu()
    saved: set[int] = set()
    for _ in range(PIECES[USER].rows // 40 + 1):
        chosen = tracker.select(USER, 41)
        assert chosen.numel() == 41
        assert chosen.tolist() == sorted(set(chosen.tolist()))
        saved |= set(chosen.tolist())
    assert saved == set(range(PIECES[USER].rows))  # row 0 each time, 40 others in turn
    assert tracker.select(USER, 10_000).tolist() == list(range(PIECES[USER].rows))


def test_ssu_clears_the_asked_range_only() -> None:
    tracker = _ssu(fraction=1.0)
    for number in range(10):
        tracker.observe(*request(number))
    before = set(tracker.recent(USER).tolist())
    tracker.clear(USER, slice(50, 120))
    assert set(tracker.recent(USER).tolist()) == {row for row in before if not 50 <= row < 120} < before


def test_ssu_selects_no_more_than_asked_and_the_same_with_the_same_seed() -> None:
    chosen = []
    for _ in range(2):
        tracker = _ssu()
        for number in range(5):
            tracker.observe(*request(number))
        chosen.append(tracker.select(USER, 7).tolist())
    assert chosen[0] == chosen[1]
    assert len(set(chosen[0])) == 7


def test_dirty_rows_are_exactly_the_touched_ones() -> None:
    tracker = _dirty()
    touched = {piece: set(_counted(range(3), piece)) for piece in (USER, SITE)}
    for number in range(3):
        tracker.observe(*request(number))
    for piece in (USER, SITE):
        assert tracker.select(piece).tolist() == sorted(touched[piece])
    undo = [tracker.clear(USER, tracker.select(USER, 40)), tracker.clear(SITE, slice(None))]
    assert tracker.select(USER).tolist() == sorted(touched[USER])[40:]
    assert tracker.select(SITE).tolist() == []
    tracker.observe(*request(5))
    for taken in undo:
        tracker.give_back(taken)
    for piece in (USER, SITE):
        assert tracker.select(piece).tolist() == sorted(touched[piece] | set(ids_of(piece, *request(5))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_scar_selects_what_moved_farthest_since_it_was_saved(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(piece.rows, piece.dim, generator=generator).to(dtype) for piece in PIECES]
    tracker = ScarTracker(WATCHED, zeros(ScarTracker.tensor_specs(WATCHED, str(dtype).split(".")[1])), weights)
    tracker.start()
    assert tracker.select(USER, 400).numel() == 0  # nothing moved

    weights[USER][torch.arange(0, 400, 2)] += torch.rand(200, 8, generator=generator).to(dtype)
    start = tracker.tensors()["saved_rows"].clone()
    distance = (weights[USER].double() - start[: 400 * 8].view(400, 8).double()).square().sum(1)
    farthest = sorted(distance.topk(30).indices.tolist())
    saved = tracker.select(USER, 30)
    assert saved.tolist() == farthest
    undo = tracker.clear(USER, saved)
    assert not set(tracker.select(USER, 400).tolist()) & set(farthest)
    assert tracker.select(USER, 400).numel() == 170
    tracker.give_back(undo)
    assert torch.equal(tracker.tensors()["saved_rows"], start)


@pytest.mark.parametrize("row_wise", [True, False])
def test_adagrad_selects_by_the_path_since_saved(row_wise: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(piece.rows,) if row_wise else (piece.rows, piece.dim) for piece in PIECES]
    sums = [torch.rand(shape, generator=generator) for shape in shapes]
    tracker = AdagradTracker(WATCHED, zeros(AdagradTracker.tensor_specs(WATCHED)), sums)
    tracker.start()
    assert tracker.select(USER, 400).numel() == 0
    old = sums[USER].clone()
    sums[USER][::2] += torch.rand(sums[USER][::2].shape, generator=generator)
    path = (sums[USER].double().sqrt() - old.double().sqrt()).view(400, -1).sum(1)
    saved = tracker.select(USER, 30)
    assert saved.tolist() == sorted(path.topk(30).indices.tolist())
    before = tracker.tensors()["saved_path"].clone()
    undo = [tracker.clear(USER, saved), tracker.clear(SITE, slice(5, 9))]
    assert tracker.select(USER, 400).numel() == 170
    for taken in undo:
        tracker.give_back(taken)
    assert torch.equal(tracker.tensors()["saved_path"], before)


def test_memory_is_what_the_closed_forms_say() -> None:
    rows, weight_bytes = WATCHED.rows, sum(PIECES[index].numel for index in WATCHED.indices) * 4
    assert rows == 490
    assert _mfu().overhead_bytes == 4 * rows
    assert _dirty().overhead_bytes == rows
    assert _ssu(0.125).overhead_bytes == 4 * (50 + 11)  # the integer part of r·R, a piece
    live = [torch.zeros(piece.rows, piece.dim) for piece in PIECES]
    scar = ScarTracker(WATCHED, zeros(ScarTracker.tensor_specs(WATCHED, "float32")), live)
    assert scar.overhead_bytes == weight_bytes
    sums = [torch.zeros(piece.rows) for piece in PIECES]
    assert AdagradTracker(WATCHED, zeros(AdagradTracker.tensor_specs(WATCHED)), sums).overhead_bytes == 4 * rows
    assert NoTracker(WATCHED).overhead_bytes == 0


def test_a_new_tracker_over_the_same_memory_goes_on() -> None:
    memory = zeros(MfuTracker.tensor_specs(WATCHED))
    MfuTracker(WATCHED, memory, every=1).observe(*request(3))
    adopted = MfuTracker(WATCHED, memory, every=1)
    assert adopted.select(USER, 10).tolist() == _most(_counted(range(3, 4), USER), 10)


def test_memory_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"490 items was given a tensor of shape \(489,\)"):
        MfuTracker(WATCHED, {"access_counters": torch.zeros(489, dtype=torch.int32)})


def test_nothing_is_watched_without_prioritized_tables() -> None:
    nothing = Watched.of(PIECES, ())
    tracker = MfuTracker(nothing, zeros(MfuTracker.tensor_specs(nothing)), every=1)
    tracker.observe(*request(1))
    assert tracker.overhead_bytes == 0
    none = NoTracker(WATCHED)
    none.observe(*request(1))
    assert none.watched.indices == ()
    assert none.select(USER, 5).numel() == 0
    none.give_back(none.clear(USER, slice(None)))
    assert none.tensors() == {}


def test_a_push_of_no_samples_is_nothing_to_see() -> None:
    nothing = torch.empty(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    for tracker in (_mfu(), _ssu(), _dirty()):
        before = [tensor.clone() for tensor in tracker.tensors().values()]
        tracker.observe(*nothing)
        assert all(map(torch.equal, tracker.tensors().values(), before))


@pytest.mark.parametrize("largest", [1, 255, 256, 32_767, 32_768, 1 << 30])
def test_undoing_keeps_counts_as_small_as_they_are(largest: int) -> None:
    tracker = _mfu()
    counts = tracker.tensors()["access_counters"]
    counts[: PIECES[USER].rows] = torch.arange(PIECES[USER].rows, dtype=torch.int32) % 2 * largest
    before = counts.clone()
    for rows in (slice(0, 400), torch.arange(400)):
        undo = tracker.clear(USER, rows)
        assert not counts[:400].any()
        assert undo.values.nbytes == 400 * (1 if largest < 256 else 2 if largest < 32_768 else 4)
        tracker.give_back(undo)
        assert torch.equal(counts, before)


def test_undoing_marks_takes_a_bit_a_row() -> None:
    tracker = _dirty()
    tracker.observe(*request(1))
    before = tracker.tensors()["dirty_rows"].clone()
    for rows in (slice(0, 400), slice(3, 20), torch.arange(1, 400, 3)):
        undo = tracker.clear(USER, rows)
        assert undo.values.nbytes <= 50
        tracker.give_back(undo)
        assert torch.equal(tracker.tensors()["dirty_rows"], before)
