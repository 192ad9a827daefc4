from __future__ import annotations

import queue
import threading

import numpy as np
import pytest

from checkpoint.buffers import PAGE_BYTES, Buffer, BufferPool, aligned_memory


def test_buffers_are_whole_pages_of_their_own() -> None:
    pool = BufferPool(5, 2 * PAGE_BYTES)
    taken = [pool.take() for _ in range(5)]
    for number, buffer in enumerate(taken):
        assert buffer is not None
        assert buffer.ctypes.data % PAGE_BYTES == 0
        assert buffer.size == 2 * PAGE_BYTES
        buffer.fill(number)
    assert [np.unique(buffer).tolist() for buffer in taken if buffer is not None] == [[0], [1], [2], [3], [4]]
    assert (pool.free, pool.bytes) == (0, 10 * PAGE_BYTES)


def test_the_one_given_back_last_is_taken_first() -> None:
    pool = BufferPool(3, PAGE_BYTES)
    first, second = pool.take(), pool.take()
    assert first is not None
    assert second is not None
    pool.give(second)
    pool.give(first)
    assert pool.take() is first
    assert pool.take() is second


def test_without_a_free_buffer_there_is_none_and_the_wait_is_counted() -> None:
    pool = BufferPool(2, PAGE_BYTES)
    assert pool.wait_free(2, 0)
    pool.take()
    assert pool.waited_s == 0
    pool.take()
    assert pool.take(0.01) is None
    assert pool.waited_s >= 0.01
    assert not pool.wait_free(1, 0.01)


def test_many_hands_lose_no_buffer_and_wake_whoever_waits() -> None:
    pool, rounds = BufferPool(3, PAGE_BYTES), 3000
    out: queue.SimpleQueue[Buffer | None] = queue.SimpleQueue()

    def give() -> None:
        while (buffer := out.get()) is not None:
            pool.give(buffer)

    givers = [threading.Thread(target=give, daemon=True) for _ in range(2)]
    for giver in givers:
        giver.start()
    for _ in range(rounds):
        buffer = pool.take(30)
        assert buffer is not None, "a buffer was free and nobody was told"
        out.put(buffer)
    assert pool.wait_free(3, 30)
    for _ in givers:
        out.put(None)
    for giver in givers:
        giver.join()
    assert pool.free == 3


@pytest.mark.parametrize(("count", "size"), [(1, PAGE_BYTES), (2, 0), (2, PAGE_BYTES + 1), (2, PAGE_BYTES - 1)])
def test_pools_that_could_not_work_are_refused(count: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"at least 2 buffers of a multiple of {PAGE_BYTES} bytes: {count} × {size}"):
        BufferPool(count, size)


@pytest.mark.parametrize("size", [1, PAGE_BYTES, (2 << 20) + 5])
def test_aligned_memory_is_writable_to_its_end(size: int) -> None:
    memory = aligned_memory(size)
    assert memory.size == size
    assert memory.ctypes.data % PAGE_BYTES == 0
    memory[-1] = 7
    assert memory[-1] == 7
