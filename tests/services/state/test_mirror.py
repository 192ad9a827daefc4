"""The mirror through real outages."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.state.delivery import is_complete
from services.state.mirror import StateMirror, StoreChange
from services.state.quality_records import PlsRecord
from services.state.run_records import HeartbeatRecord, RoleRecord
from services.state.store import StateStore
from tests.services.state.some_records import event, heartbeat, pls, role


class _Mirrored:
    """A mirror and what it told."""

    def __init__(self, store: StateStore, **options: int) -> None:
        self.store, self.changes = store, list[StoreChange]()
        self.mirror = StateMirror(store, self.changes.append, check_s=0.1, **options)

    def signal(self, number: signal.Signals) -> None:
        assert self.store.embedded is not None
        assert self.store.embedded.pid is not None
        os.kill(self.store.embedded.pid, number)

    def until(self, state: str) -> StoreChange:
        deadline = time.monotonic() + 20.0
        while True:
            found = [change for change in self.changes if change.state == state]
            if found:
                return found[-1]
            assert time.monotonic() < deadline, self.changes
            time.sleep(0.01)

    @property
    def events(self) -> list[int]:
        return [found.sequence for found in self.store.read_events()]


@pytest.fixture
def mirrored(store: StateStore) -> Iterator[_Mirrored]:
    made = _Mirrored(store)
    yield made
    made.mirror.close()


def test_the_newest_value_arrives(mirrored: _Mirrored) -> None:
    for samples in range(1, 1000):
        mirrored.mirror.put(pls(samples))
        mirrored.mirror.append(event(samples))
    mirrored.mirror.put(role(1))
    mirrored.mirror.delete(RoleRecord, "shard:1")
    assert mirrored.mirror.flush(10.0)
    stored = mirrored.store.get(PlsRecord)
    assert stored is not None
    assert stored.record == pls(999)
    assert mirrored.events == [*range(1, 1000)]
    assert mirrored.store.find(RoleRecord) == []
    assert is_complete(mirrored.store)
    assert mirrored.changes == []


def test_a_killed_server_is_started_again(mirrored: _Mirrored) -> None:
    mirrored.mirror.put(role(1))
    mirrored.mirror.append(event(1))
    assert mirrored.mirror.flush(10.0)
    mirrored.signal(signal.SIGKILL)
    mirrored.mirror.put(role(2))
    mirrored.mirror.append(event(2))
    assert mirrored.until("back").seconds > 0
    assert mirrored.mirror.flush(10.0)
    assert [found.index for found in mirrored.store.find(RoleRecord)] == [1, 2]
    assert mirrored.events == [1, 2]
    assert [change.state for change in mirrored.changes] == ["away", "back"]


def test_a_stopped_server_stops_nobody(mirrored: _Mirrored) -> None:
    assert mirrored.mirror.flush(10.0)
    mirrored.signal(signal.SIGSTOP)
    mirrored.mirror.put(heartbeat(1), ttl_s=0.5)
    for number in range(1, 2001):
        mirrored.mirror.append(event(number))
        mirrored.mirror.put(pls(number))
    away = mirrored.until("away")
    assert "Timeout" in away.detail
    assert mirrored.mirror.away
    assert not mirrored.mirror.flush(0.1)
    time.sleep(1.0)
    mirrored.signal(signal.SIGCONT)
    assert mirrored.until("back").seconds >= 1.0
    assert mirrored.mirror.flush(10.0)
    assert mirrored.events == [*range(1, 2001)]
    assert mirrored.store.find(HeartbeatRecord) == []  # no longer true when the store was back
    assert [change.state for change in mirrored.changes] == ["away", "back"]


def test_an_emptied_store_is_filled_again(mirrored: _Mirrored) -> None:
    for number in range(1, 600):
        mirrored.mirror.append(event(number))
        mirrored.mirror.put(role(number))
    assert mirrored.mirror.flush(10.0)
    mirrored.store.client.flushall()
    assert not is_complete(mirrored.store)
    deadline = time.monotonic() + 10.0
    while not is_complete(mirrored.store):  # by itself
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len(mirrored.store.find(RoleRecord)) == 599
    assert mirrored.events == [*range(1, 600)]


def test_shared_records_are_written_where_missing(mirrored: _Mirrored) -> None:
    mirrored.store.put(pls(7))
    mirrored.mirror.put(pls(1), shared=True)
    assert mirrored.mirror.flush(10.0)
    assert mirrored.store.find(PlsRecord) == []  # one of its kind
    stored = mirrored.store.get(PlsRecord)
    assert stored is not None
    assert stored.record == pls(7)
    mirrored.store.client.flushall()
    assert mirrored.mirror.flush(10.0)
    stored = mirrored.store.get(PlsRecord)
    assert stored is not None
    assert stored.record == pls(1)


def test_a_former_coordinator_cannot_write(mirrored: _Mirrored) -> None:
    mirrored.mirror.put(pls(1))
    assert mirrored.mirror.flush(10.0)
    successor = _Mirrored(mirrored.store)
    successor.mirror.put(pls(2))
    assert successor.mirror.flush(10.0)
    mirrored.mirror.put(pls(3))
    assert not mirrored.mirror.flush(10.0)
    assert mirrored.until("taken")
    stored = mirrored.store.get(PlsRecord)
    assert stored is not None
    assert stored.record == pls(2)
    assert successor.mirror.close()
    assert successor.changes == []


def test_bounds(mirrored: _Mirrored) -> None:
    assert mirrored.mirror.close()  # one writer
    mirrored.signal(signal.SIGSTOP)
    small = _Mirrored(mirrored.store, max_keys=2, max_events=3)
    for number in range(1, 7):
        small.mirror.append(event(number))
        small.mirror.put(role(number))
    with pytest.raises(ValueError, match="events go in order"):
        small.mirror.append(event(6))
    mirrored.signal(signal.SIGCONT)
    assert small.mirror.flush(10.0)
    assert "shard:" in small.until("full").detail
    assert [found.index for found in mirrored.store.find(RoleRecord)] == [1, 2]
    assert small.events[-3:] == [4, 5, 6]
    small.mirror.close()


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5)),
        st.tuples(st.just("delete"), st.integers(0, 5)),
        st.tuples(st.sampled_from(["append", "flushall", "kill", "stop", "wait"]), st.just(0)),
    ),
    max_size=25,
)


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateStore]:
    place: Path = tmp_path_factory.mktemp("state")
    opened = StateStore.open(None, "r", place, timeout_s=0.1)
    yield opened
    opened.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_STEPS)
def test_outages_and_flushes_leave_the_same_state(shared_store: StateStore, steps: list[tuple[str, int]]) -> None:
    shared_store.clear()
    made, expected, appended, puts = _Mirrored(shared_store), dict[int, RoleRecord](), 0, 0
    for step, index in steps:
        if step == "put":
            puts += 1
            expected[index] = role(index, generation=puts)
            made.mirror.put(expected[index])
        elif step == "delete":
            expected.pop(index, None)
            made.mirror.delete(RoleRecord, f"shard:{index}")
        elif step == "append":
            appended += 1
            made.mirror.append(event(appended))
        elif step == "wait":
            time.sleep(0.03)
        elif made.mirror.flush(10.0):  # the server answers, so that it can be hurt
            if step == "flushall":
                shared_store.client.flushall()
            elif step == "kill":
                made.signal(signal.SIGKILL)
            else:
                made.signal(signal.SIGSTOP)
                time.sleep(0.15)
                made.signal(signal.SIGCONT)
    assert made.mirror.flush(20.0)
    assert made.mirror.close()
    assert {found.index: found for found in shared_store.find(RoleRecord)} == expected
    assert shared_store.read_events() == [event(number) for number in range(1, appended + 1)]
