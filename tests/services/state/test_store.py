"""Typed records on a real server."""

from __future__ import annotations

import multiprocessing
import pickle
import time

import pytest

from services.coordinator.books_state import AccountsState, BooksState
from services.coordinator.position import Position
from services.state.errors import EtagMismatchError, StateStoreUnavailableError, UnreadableRecordError
from services.state.quality_records import PlsRecord, SaveRecord
from services.state.run_records import HeartbeatRecord, RoleRecord
from services.state.store import StateStore
from services.state.url import public_url, url_problem
from services.state.work_records import LeasePart, SplitsRecord
from tests.services.state.some_records import event, heartbeat, pls, role
from trainer.data.block import RejectedLine

SECRET = "pa55w0rd"


def test_records_come_back_equal(store: StateStore) -> None:
    position = Position(plan="p", stages_done=1, untouched=2, open=(), counts={"trained": 5})
    accounts = AccountsState(
        first_pass=(0.5, 5, 1),
        evaluations=(),
        bad_batches=(),
        bad_lines=(RejectedLine("ä b.tsv", 3, "I1", "x", "a number"),),
    )
    splits = SplitsRecord(
        books=BooksState(position=position, accounts=accounts),
        leases=(LeasePart(lease_id=3, trainer_id=0, ordinal=1, remaining=((0, 2), (4, 9)), seen=False),),
        trained_by={0: 5},
    )
    for record in (splits, role(1), heartbeat(1), pls(1)):
        etag = store.put(record)
        assert store.get(type(record), record.name) == (record, etag)
    assert store.client.get("penumbra:run:r:role:shard:1").startswith(b'{"schema":1,"role":"shard","index":1,')
    assert store.delete(RoleRecord, "shard:1")
    assert not store.delete(RoleRecord, "shard:1")
    assert store.get(RoleRecord, "shard:1") is None


def test_find_sees_one_kind_of_one_run(store: StateStore) -> None:
    other = StateStore(store.embedded.url, "r2") if store.embedded else store
    for number in range(1200):
        store.put(role(number))
    other.put(role(7))
    store.put(heartbeat(0))
    assert {found.index for found in store.find(RoleRecord)} == set(range(1200))
    assert {found.index for found in store.find(RoleRecord, "shard:119")} == {119, *range(1190, 1200)}
    assert store.find(RoleRecord, "sha*") == []
    assert store.find(SaveRecord) == []
    store.clear()
    assert store.find(RoleRecord) == []
    assert len(other.find(RoleRecord)) == 1
    other.close()


def test_compare_and_set(store: StateStore) -> None:
    with pytest.raises(EtagMismatchError, match="found no record"):
        store.compare_and_set(pls(1), "0" * 40)
    first = store.compare_and_set(pls(1), None)
    with pytest.raises(EtagMismatchError, match="of no record"):
        store.compare_and_set(pls(2), None)
    second = store.compare_and_set(pls(2), first)
    with pytest.raises(EtagMismatchError) as caught:
        store.compare_and_set(pls(3), first)
    assert (caught.value.expected, caught.value.found) == (first, second)
    assert store.get(PlsRecord) == (pls(2), second)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def _count(url: str, times: int) -> None:
    store = StateStore(url, "r", timeout_s=10.0)
    for _ in range(times):
        while True:
            stored = store.get(PlsRecord)
            assert stored is not None
            try:
                store.compare_and_set(pls(stored.record.total_samples + 1), stored.etag)
                break
            except EtagMismatchError:
                continue
    store.close()


def test_no_update_is_lost_between_processes(store: StateStore) -> None:
    assert store.embedded is not None
    store.put(pls(1))
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_count, args=(store.embedded.url, 150)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    stored = store.get(PlsRecord)
    assert stored is not None
    assert stored.record.total_samples == 451


def test_records_expire(store: StateStore) -> None:
    store.put(heartbeat(0), ttl_s=0.2)
    store.compare_and_set(heartbeat(1), None, ttl_s=60.0)
    assert len(store.find(HeartbeatRecord)) == 2
    time.sleep(0.3)
    assert [found.index for found in store.find(HeartbeatRecord)] == [1]
    assert 0 < store.client.pttl(store.key(HeartbeatRecord, "trainer:1")) <= 60_000


def test_a_repeated_event_is_refused(store: StateStore) -> None:
    assert [store.append_event(event(number)) for number in (1, 2, 2, 5, 1, 5)] == [
        True,
        True,
        False,
        True,
        False,
        False,
    ]
    assert store.read_events() == [event(1), event(2), event(5)]
    assert store.read_events(after=1, limit=1) == [event(2)]
    assert store.last_event() == 5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"schema":2,"total_samples":1,"new":1}', "its schema is 2"),
        (pls(1).model_dump_json(by_alias=True).replace("{", '{"new":1,', 1).encode(), "new: Extra inputs"),
        (b"\xff", "Invalid JSON"),
    ],
)
def test_what_another_version_wrote_is_refused_and_kept(store: StateStore, text: bytes, problem: str) -> None:
    key = store.key(PlsRecord)
    store.client.set(key, text)
    with pytest.raises(UnreadableRecordError, match=f"{key}.*{problem}"):
        store.get(PlsRecord)
    assert store.client.get(key) == text


def test_every_failure_is_one_error_with_the_url_and_the_key(store: StateStore) -> None:
    store.client.lpush(store.key(PlsRecord), "a list")
    with pytest.raises(StateStoreUnavailableError, match=r"penumbra:run:r:pls in the .*WRONGTYPE.*state\.redis_url"):
        store.get(PlsRecord)
    with pytest.raises(StateStoreUnavailableError, match=r"redis://127\.0\.0\.1:1/3 is unavailable.*refused") as caught:
        StateStore(f"redis://me:{SECRET}@127.0.0.1:1/3?password={SECRET}", "r").get(PlsRecord)
    assert SECRET not in str(caught.value) + repr(caught.value) + str(caught.value.__cause__) + caught.value.url
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_wrong_password_is_not_repeated(store: StateStore) -> None:
    assert store.embedded is not None
    wrong = StateStore(f"{store.embedded.url}?password={SECRET}", "r")
    with pytest.raises(StateStoreUnavailableError) as caught:
        wrong.put(pls(1))
    assert SECRET not in str(caught.value)
    wrong.close()


@pytest.mark.parametrize(
    "url", [SECRET, f"http://:{SECRET}@h", f"redis://:{SECRET}@h:port", f"unix://{SECRET}", "redis://h/a"]
)
def test_a_wrong_url_is_refused_unrepeated(url: str) -> None:
    problem = url_problem(url)
    assert problem is not None
    assert SECRET not in problem
    with pytest.raises(ValueError, match=r"state\.redis_url must be"):
        StateStore(url, "r")


def test_public_urls() -> None:
    assert public_url("rediss://u:p@[::1]:6380/2?password=p") == "rediss://[::1]:6380/2"
    assert public_url("unix://u:p@/run/v.sock?db=1") == "unix:///run/v.sock"
