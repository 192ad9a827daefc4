"""The work queue against a plain record of every row, under random leases, commits, deaths and restarts."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.coordinator.work_queue import AccountingError, WorkQueue
from trainer.data.split import Lease, Split
from trainer.ledger import Commit


def splits(sizes: list[int], path: str = "a.tsv") -> list[Split]:
    found, start = [], 0
    for size in sizes:
        found.append(Split(path, start, start + size))
        start += size
    return found


def take(queue: WorkQueue, trainer_id: int = 0) -> Lease:
    lease = queue.lease(trainer_id)
    assert isinstance(lease, Lease)
    return lease


def whole(lease: Lease, skipped: bool = False) -> list[Commit]:
    return [Commit(lease.lease_id, start, end, end - start, skipped) for start, end in lease.ranges]


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    eval_sizes=st.lists(st.integers(1, 5), max_size=3),
    epochs=st.integers(1, 3),
    every=st.none() | st.integers(1, 20),
    trainers=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_every_row_of_every_epoch_ends_in_exactly_one_outcome(
    sizes: list[int], eval_sizes: list[int], epochs: int, every: int | None, trainers: int, seed: int
) -> None:
    rng = random.Random(seed)
    train, evaluation = splits(sizes), splits(eval_sizes, "eval.tsv")
    queue = WorkQueue(train, evaluation, epochs, every)
    outcomes: dict[str, Counter[tuple[str, int, int]]] = {
        name: Counter() for name in ("trained", "skipped", "rejected", "evaluated")
    }
    held: dict[int, list[tuple[Lease, int, int]]] = {trainer: [] for trainer in range(trainers)}
    own = Counter[int]()
    requeued = deaths = rounds = steps = 0
    while not queue.done:
        steps += 1
        assert steps < 20_000, "the queue does not come to its end"
        trainer = rng.randrange(trainers)
        if rng.random() < 0.05 and deaths < 10:
            deaths += 1
            expected = sum(end - start for _, start, end in held[trainer])
            assert queue.requeue(trainer) == expected
            requeued += expected
            held[trainer], own[trainer] = [], 0
        elif held[trainer] and rng.random() < 0.7:
            lease, start, end = held[trainer].pop(rng.randrange(len(held[trainer])))
            cut = rng.randint(start + 1, end)  # commit a first part, keep the rest
            if cut < end:
                held[trainer].append((lease, cut, end))
            skipped = lease.purpose == "train" and rng.random() < 0.1
            rows = rng.randint(0, cut - start)
            queue.commit(trainer, [Commit(lease.lease_id, start, cut, rows, skipped)])
            keys = [(lease.split.path, lease.epoch, row) for row in range(start, cut)]
            used = "evaluated" if lease.purpose == "eval" else "skipped" if skipped else "trained"
            outcomes[used].update(keys[:rows])
            outcomes["rejected"].update(keys[rows:])
            own[trainer] += rows if used == "trained" else 0
            assert queue.trained_by_others(trainer) == queue.counts.trained - own[trainer]
        else:
            stage = queue.stage
            lease_or_signal = queue.lease(trainer)
            if not isinstance(lease_or_signal, Lease):
                assert lease_or_signal == "wait" and any(held.values())
                continue
            lease = lease_or_signal
            assert stage == (lease.purpose, lease.epoch)
            if lease.purpose == "eval":  # every training row of the stage is committed, and so is the round before
                assert all(other.purpose == "eval" for parts in held.values() for other, _, _ in parts)
                assert lease.epoch >= rounds
                rounds = lease.epoch
            else:
                assert all(other.purpose == "train" for parts in held.values() for other, _, _ in parts)
            held[trainer] += [(lease, start, end) for start, end in lease.ranges]

    assert queue.lease(0) == "done" and queue.stage is None
    seen = sum(outcomes.values(), Counter[tuple[str, int, int]]())
    assert set(seen.values()) == {1}
    train_rows, eval_rows = sum(sizes), sum(eval_sizes)
    wanted = {("a.tsv", epoch, row) for epoch in range(1, epochs + 1) for row in range(train_rows)}
    wanted |= {("eval.tsv", number, row) for number in range(1, rounds + 1) for row in range(eval_rows)}
    assert set(seen) == wanted
    assert bool(rounds) == bool(eval_sizes)
    counts = {name: sum(rows.values()) for name, rows in outcomes.items()}
    assert counts == {name: getattr(queue.counts, name) for name in counts}


def test_stages_alternate_and_evaluation_waits_for_the_last_row() -> None:
    queue = WorkQueue(splits([4, 4, 4]), splits([2], "eval.tsv"), epochs=1, eval_every_samples=8)
    first, second = take(queue, 0), take(queue, 1)
    assert queue.lease(0) == "wait"
    queue.commit(0, whole(first))
    assert queue.lease(0) == "wait" and queue.stages_done == 0
    queue.commit(1, [Commit(second.lease_id, 4, 7, 3, False)])
    assert queue.lease(0) == "wait", "one row is still out"
    queue.commit(1, [Commit(second.lease_id, 7, 8, 1, False)])
    assert queue.stages_done == 1 and queue.stage == ("eval", 1)
    queue.commit(0, whole(take(queue)))
    assert queue.stage == ("train", 1)
    queue.commit(0, whole(take(queue)))
    last = take(queue)
    assert (last.purpose, last.epoch) == ("eval", 2)
    queue.commit(0, whole(last))
    assert queue.done and queue.stages_done == 4
    assert (queue.counts.trained, queue.counts.evaluated) == (12, 4)


def test_prediction_comes_last_and_goes_on_after_a_death() -> None:
    queue = WorkQueue(splits([4]), splits([2], "eval.tsv"), 1, None, splits([3, 3], "test.tsv"))
    queue.commit(0, whole(take(queue)))
    evaluation = take(queue)
    assert evaluation.purpose == "eval" and queue.lease(1) == "wait"
    queue.commit(0, whole(evaluation))
    assert queue.stage == ("predict", 2), "not the last round's number, whose weights trainers have kept"
    lease = take(queue, 0)
    queue.commit(0, [Commit(lease.lease_id, 0, 2, 1, False)])
    assert queue.requeue(0) == 1
    again = take(queue, 1)
    assert (again.split, again.ranges, again.purpose) == (lease.split, ((2, 3),), "predict")
    with pytest.raises(AccountingError, match="lease 2 are reported, which nobody has"):
        queue.split_of(lease.lease_id)
    queue.commit(1, whole(again) + whole(take(queue, 1)))
    assert queue.done
    assert (queue.counts.trained, queue.counts.evaluated, queue.counts.predicted, queue.counts.rejected) == (4, 2, 5, 1)


def test_the_epoch_that_is_leased_is_the_one_shown() -> None:
    queue = WorkQueue(splits([2, 2]), [], epochs=2, eval_every_samples=None)
    shown = []
    while not queue.done:
        shown.append(queue.stage)
        queue.commit(0, whole(take(queue)))
    assert shown == [("train", 1), ("train", 1), ("train", 2), ("train", 2)]


def test_a_requeued_lease_skips_what_was_committed_and_comes_first() -> None:
    queue = WorkQueue(splits([10, 10]), [], epochs=1, eval_every_samples=None)
    lease = take(queue, 3)
    queue.commit(3, [Commit(lease.lease_id, 2, 4, 2, False), Commit(lease.lease_id, 6, 7, 1, False)])
    assert queue.requeue(3) == 7
    again = take(queue, 1)
    assert again.lease_id != lease.lease_id
    assert (again.split, again.ranges) == (lease.split, ((0, 2), (4, 6), (7, 10)))
    assert queue.requeue(3) == 0


def test_several_leases_of_a_dead_trainer_keep_their_order() -> None:
    queue = WorkQueue(splits([5, 5, 5]), [], epochs=1, eval_every_samples=None)
    leases = [take(queue, 0), take(queue, 0)]
    assert queue.requeue(0) == 10
    assert [take(queue, 1).split for _ in range(3)] == [leases[0].split, leases[1].split, Split("a.tsv", 10, 15)]


def test_a_replacement_counts_from_zero() -> None:
    queue = WorkQueue(splits([10]), [], epochs=1, eval_every_samples=None)
    lease = take(queue, 0)
    queue.commit(0, [Commit(lease.lease_id, 0, 6, 6, False)])
    assert (queue.trained_by_others(0), queue.trained_by_others(1)) == (0, 6)
    queue.requeue(0)
    assert queue.trained_by_others(0) == 6, "its predecessor's samples are part of the run's progress"


@pytest.mark.parametrize(
    ("start", "end"), [(0, 3), (2, 3), (2, 5), (-1, 0), (8, 11), (5, 5)], ids=lambda value: str(value)
)
def test_rows_committed_twice_or_never_leased_are_refused(start: int, end: int) -> None:
    queue = WorkQueue(splits([10]), [], epochs=1, eval_every_samples=None)
    lease = take(queue)
    queue.commit(0, [Commit(lease.lease_id, 0, 3, 3, False)])
    with pytest.raises(AccountingError, match=r"a\.tsv: rows \[.*committed before or never leased"):
        queue.commit(0, [Commit(lease.lease_id, start, end, end - start, False)])
    assert queue.counts.trained == 3


def test_a_lease_of_somebody_else_or_of_the_dead_is_refused() -> None:
    queue = WorkQueue(splits([10]), [], epochs=1, eval_every_samples=None)
    lease = take(queue, 0)
    with pytest.raises(AccountingError, match="trainer 1 commits rows of lease 0"):
        queue.commit(1, whole(lease))
    queue.requeue(0)
    with pytest.raises(AccountingError, match="which it lacks"):
        queue.commit(0, whole(lease))
    queue.commit(2, whole(take(queue, 2)))
    assert queue.done and queue.counts.trained == 10


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    eval_sizes=st.lists(st.integers(1, 5), max_size=3),
    epochs=st.integers(1, 3),
    every=st.none() | st.integers(1, 20),
    seed=st.integers(0, 2**32),
)
def test_a_position_carries_over_what_is_committed_and_nothing_else(
    sizes: list[int], eval_sizes: list[int], epochs: int, every: int | None, seed: int
) -> None:
    """A run that is killed and resumed from its last position, many times, trains every row of every epoch once."""
    rng = random.Random(seed)
    train, evaluation = splits(sizes), splits(eval_sizes, "eval.tsv")

    def fresh() -> WorkQueue:
        return WorkQueue(train, evaluation, epochs, every)

    queue, saved, resumes, steps = fresh(), fresh().position(), 0, 0
    done: Counter[tuple[int, int]] = Counter()
    done_when_saved = done.copy()
    held: list[tuple[Lease, int, int]] = []
    while not queue.done:
        steps += 1
        assert steps < 20_000
        choice = rng.random()
        if choice < 0.1:
            saved, done_when_saved = queue.position(), done.copy()
            assert type(saved).model_validate_json(saved.model_dump_json()) == saved
        elif choice < 0.15 and resumes < 8:
            queue, held, done, resumes = fresh(), [], done_when_saved.copy(), resumes + 1
            queue.go_to(saved)
            assert queue.counts.trained == done.total()
        elif choice < 0.2 and held:
            queue.requeue(0)
            held = []
        elif choice < 0.5 and isinstance(lease := queue.lease(0), Lease):
            held += [(lease, start, end) for start, end in lease.ranges]
        elif held:
            lease, start, end = held.pop(rng.randrange(len(held)))
            middle = rng.randint(start + 1, end)
            queue.commit(0, [Commit(lease.lease_id, start, middle, middle - start, False)])
            if lease.purpose == "train":
                done.update((lease.epoch, row) for row in range(start, middle))
            if middle < end:
                held.append((lease, middle, end))
    assert done == Counter((epoch, row) for epoch in range(1, epochs + 1) for row in range(sum(sizes)))


def test_a_position_of_other_splits_is_refused() -> None:
    with pytest.raises(AccountingError, match="other splits"):
        WorkQueue(splits([5]), [], 1, None).go_to(WorkQueue(splits([6]), [], 1, None).position())
