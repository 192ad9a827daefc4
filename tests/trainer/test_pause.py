"""PauseGate with real threads: who passes, who waits, and what becomes of a holder that is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from trainer.pause import PauseGate

LONG_S = 20.0


class Workers:
    """Threads that step as Hogwild workers do: they look at the gate once a step."""

    def __init__(self, gate: PauseGate, threads: int) -> None:
        self.gate, self.steps, self._stop = gate, [0] * threads, threading.Event()
        self.inside = [False] * threads
        self.stuck = threading.Event()
        self.stuck.set()
        self._threads = [threading.Thread(target=self._work, args=(index,), daemon=True) for index in range(threads)]

    def _work(self, index: int) -> None:
        while not self._stop.is_set():
            if self.gate.closed:
                self.gate.park()
            self.inside[index] = True
            self.stuck.wait()
            self.steps[index] += 1
            self.inside[index] = False
            time.sleep(0.0002)
        self.gate.leave()

    def go_on(self) -> None:
        """Wait until every thread has made another step."""
        before, deadline = list(self.steps), time.monotonic() + LONG_S
        while not all(now > then for now, then in zip(self.steps, before, strict=True)):
            assert time.monotonic() < deadline, "a thread does not go on"
            time.sleep(0.001)


@contextmanager
def working(gate: PauseGate, threads: int) -> Iterator[Workers]:
    workers = Workers(gate, threads)
    for thread in workers._threads:
        thread.start()
    try:
        yield workers
    finally:
        workers.stuck.set()
        workers._stop.set()
        gate.open()
        for thread in workers._threads:
            thread.join(LONG_S)
            assert not thread.is_alive()


def test_while_it_is_closed_nobody_is_inside_a_step() -> None:
    gate = PauseGate(3)
    with working(gate, 3) as workers:
        for _ in range(50):
            workers.go_on()
            assert gate.close(LONG_S, LONG_S)
            assert workers.inside == [False] * 3
            steps = list(workers.steps)
            time.sleep(0.002)
            assert workers.steps == steps
            assert gate.open()
        workers.go_on()


def test_a_thread_that_does_not_come_opens_it_again() -> None:
    gate = PauseGate(2)
    with working(gate, 2) as workers:
        workers.go_on()
        workers.stuck.clear()
        deadline = time.monotonic() + LONG_S
        while not all(workers.inside) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert not gate.close(LONG_S, 0.05)
        assert not gate.closed
        assert not gate.open(), "there is no pause to end"
        workers.stuck.set()
        workers.go_on()
        assert gate.close(LONG_S, LONG_S) and gate.open()


def test_a_holder_that_never_opens_holds_nobody_for_ever() -> None:
    gate = PauseGate(2)
    with working(gate, 2) as workers:
        workers.go_on()
        assert gate.close(0.1, LONG_S)
        workers.go_on()
        assert not gate.closed
        assert not gate.open(), "the pause did not hold, and whoever relied on it must know"
        assert gate.close(LONG_S, LONG_S), "the next one may hold again"
        assert gate.open()


def test_a_thread_that_waits_for_input_counts_as_parked_and_waits_on_while_it_is_closed() -> None:
    gate, order, waiting, arrived = PauseGate(1), list[str](), threading.Event(), threading.Event()

    def work() -> None:
        with gate.idle():
            waiting.set()
            arrived.wait(LONG_S)
        order.append("stepped")
        gate.leave()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert waiting.wait(LONG_S)
    assert gate.close(LONG_S, LONG_S)
    arrived.set()
    time.sleep(0.05)
    order.append("opened")
    assert gate.open()
    thread.join(LONG_S)
    assert order == ["opened", "stepped"]


def test_threads_that_ended_are_not_waited_for() -> None:
    gate = PauseGate(2)
    gate.leave()
    gate.leave()
    assert gate.close(LONG_S, 0.0) and gate.open()
