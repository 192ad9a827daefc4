"""A keeper died: whoever maps its memory gives it to the next one, over real sockets."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch

from services.memory.descriptors import KeeperError
from services.memory.header import ArraySpec, Layout
from services.memory.holdings import hand_over
from services.memory.region import Region
from services.memory.store import MemoryStore

_OTHER_END = """
import sys
from services.memory.holdings import hand_over
from services.memory.region import Region
region = Region.open(sys.argv[1], sys.argv[2])
for _ in sys.stdin:
    print(hand_over(sys.argv[1]), flush=True)
    region.arrays["rows"][1] = 9.0
"""


@pytest.fixture
def names(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Of a keeper and of a region that nobody else in this process has."""
    gc.collect()
    yield f"test-{os.getpid()}-{request.node.name[:40]}", f"{request.node.name}/rows"
    gc.collect()


def region(keeper: str, name: str, value: float = 0.0) -> Region:
    made = Region.create(keeper, name, Layout("shard-0", {}, {"rows": ArraySpec("float32", 64)}), 1)
    made.arrays["rows"].fill_(value)
    made.mark_ready()
    return made


def settles_at(count: int) -> bool:
    """The keeper closes its copy of what it sent a moment after it was received."""
    deadline = time.monotonic() + 10.0
    while descriptors() != count:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def descriptors() -> int:
    """Of this process, to a keeper's memory."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    return sum("penumbra:" in link for link in links)


def test_a_new_keeper_is_given_the_same_memory_by_both_ends(names: tuple[str, str]) -> None:
    keeper, name = names
    old = MemoryStore(keeper)
    mine = region(keeper, name, 3.0)
    with subprocess.Popen(
        [sys.executable, "-c", _OTHER_END, keeper, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        try:
            # It has mapped the region once it answers; the old keeper still is the one it asks.
            other.stdin.write("\n")
            other.stdin.flush()
            assert other.stdout.readline() == "1\n"
            old.close()
            new = MemoryStore(keeper)
            try:
                assert not new.holds(name)
                other.stdin.write("\n")
                other.stdin.flush()
                assert other.stdout.readline() == "1\n"
                assert new.holds(name)
                held = new.held_bytes()
                assert hand_over(keeper) >= 1  # given already: it stays as it is
                assert new.held_bytes() >= held and new.holds(name)
                other.stdin.close()
                assert other.wait(20) == 0
                adopted = Region.adopt(keeper, name, 2)
                assert adopted.arrays["rows"][0] == 3.0 and adopted.arrays["rows"][1] == 9.0
                mine.arrays["rows"][2] = 5.0
                assert adopted.arrays["rows"][2] == 5.0, "it is the same memory, no copy"
            finally:
                new.close()
        finally:
            other.kill()


def test_memory_outlives_its_giver(names: tuple[str, str]) -> None:
    keeper, name = names
    old = MemoryStore(keeper)
    mine = region(keeper, name, 7.0)
    old.close()
    new = MemoryStore(keeper)
    hand_over(keeper)
    del mine
    gc.collect()
    assert torch.equal(Region.open(keeper, name).arrays["rows"], torch.full((64,), 7.0))
    new.close()


def test_other_memory_of_the_same_name_is_refused_and_the_rest_is_given(names: tuple[str, str]) -> None:
    keeper, name = names
    old = MemoryStore(keeper)
    first, second = region(keeper, name, 1.0), region(keeper, f"{name}-more", 2.0)
    old.close()
    new = MemoryStore(keeper)
    theirs = region(keeper, name, 4.0)
    with pytest.raises(KeeperError, match=f"holds other memory named '{name}'"):
        hand_over(keeper)
    assert new.holds(f"{name}-more")
    assert Region.open(keeper, name).arrays["rows"][0] == 4.0
    assert (first.arrays["rows"][0], second.arrays["rows"][0], theirs.arrays["rows"][0]) == (1.0, 2.0, 4.0)
    new.close()


def test_descriptors_go_with_their_mappings(names: tuple[str, str]) -> None:
    keeper, name = names
    before = descriptors()
    store = MemoryStore(keeper)
    mine = [region(keeper, f"{name}-{number}") for number in range(5)]
    assert settles_at(before + 15)  # the keeper's, ours, and the one that Python's mmap makes of it
    tensor = mine[0].arrays["rows"]
    del mine
    gc.collect()
    assert settles_at(before + 7), "a tensor keeps its mapping, and that its descriptor"
    assert tensor.sum() == 0.0
    del tensor
    gc.collect()
    assert settles_at(before + 5)
    store.close()
    assert settles_at(before)


def test_no_keeper_is_an_error(names: tuple[str, str]) -> None:
    keeper, name = names
    store = MemoryStore(keeper)
    mine = region(keeper, name)
    store.close()
    with pytest.raises(KeeperError, match="did not answer"):
        hand_over(keeper)
    assert mine.ready
