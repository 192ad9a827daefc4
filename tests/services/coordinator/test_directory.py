"""The directory: generations, refusal of the old, silence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.coordinator.directory import Directory, Entry
from services.identity import Address
from services.memory.process import ProcessIdentity

PROCESS = ProcessIdentity(123, 456)


def enter(directory: Directory, role: str, index: int) -> Address:
    address = directory.next_address(role, index)  # type: ignore[arg-type]
    directory.put(Entry(address, f"actor of {address}", "node"))
    return address


@given(st.lists(st.tuples(st.sampled_from(["shard", "trainer"]), st.integers(0, 2), st.booleans()), max_size=30))
def test_generations_grow_for_ever_and_only_the_newest_is_known(steps: list[tuple[str, int, bool]]) -> None:
    directory = Directory()
    history: dict[tuple[str, int], list[Address]] = {}
    for role, index, removes in steps:
        former = history.setdefault((role, index), [])
        if removes and former:
            directory.remove(former[-1])
        address = enter(directory, role, index)
        assert address.generation == len(former) + 1
        assert not any(directory.knows(old) or directory.heartbeat(old, PROCESS, 1.0) for old in former)
        assert directory.knows(address) and directory.heartbeat(address, PROCESS, 1.0)
        former.append(address)
    newest = sorted(addresses[-1] for addresses in history.values())
    assert [entry.address for entry in directory.all()] == newest


def test_removing_an_old_incarnation_leaves_its_successor() -> None:
    directory = Directory()
    old, new = enter(directory, "trainer", 0), enter(directory, "trainer", 0)
    assert directory.remove(old) is None and directory.knows(new)
    removed = directory.remove(new)
    assert removed is not None and removed.address == new
    assert directory.get("trainer", 0) is None and not directory.knows(new)
    assert enter(directory, "trainer", 0).generation == 3


def test_only_who_was_heard_can_fall_silent() -> None:
    directory = Directory()
    heard, never = enter(directory, "shard", 0), enter(directory, "shard", 1)
    directory.heartbeat(heard, PROCESS, 100.0)
    assert directory.silent(115.0, 15.0) == []
    silent = directory.silent(115.1, 15.0)
    assert [entry.address for entry in silent] == [heard] and silent[0].process == PROCESS
    directory.heartbeat(heard, PROCESS, 116.0)
    directory.heartbeat(never, PROCESS, 100.0)
    assert [entry.address for entry in directory.silent(120.0, 15.0)] == [never]
    assert directory.silent(120.0, 15.0, since_s=105.0) == []
    assert [entry.address for entry in directory.silent(120.1, 15.0, since_s=105.0)] == [never]


def test_entries_are_listed_by_role_and_index() -> None:
    directory = Directory()
    for index in (2, 0, 1):
        enter(directory, "trainer", index)
        enter(directory, "keeper", index)
    assert [entry.address.index for entry in directory.all("trainer")] == [0, 1, 2]
    assert [entry.address.role for entry in directory.all()] == ["keeper"] * 3 + ["trainer"] * 3
