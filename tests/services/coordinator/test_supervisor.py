"""Silence: whose heartbeats stop is dead, unless nobody listened."""

from __future__ import annotations

import time

from services.coordinator.directory import Directory, Entry
from services.coordinator.supervisor import Supervisor
from services.memory.process import identify

TIMEOUT_S = 1.2


def test_who_falls_silent_while_the_supervisor_looks_is_dead_and_nobody_is_after_it_stood_still() -> None:
    directory = Directory()
    address = directory.next_address("shard", 0)
    directory.put(Entry(address, None, "node"))
    supervisor = Supervisor(directory, TIMEOUT_S)
    directory.heartbeat(address, identify(), time.monotonic())
    assert supervisor.poll(0.0) == ([], [])
    time.sleep(TIMEOUT_S + 0.2)
    assert supervisor.poll(0.0) == ([], []), "it was not there to hear anybody"
    while not (deaths := supervisor.poll(0.0)[0]):
        time.sleep(0.05)
    (death,) = deaths
    assert death.entry.address == address and death.cause.startswith("no heartbeat for ")
    assert death.detect_s > 2 * TIMEOUT_S, "it was given the whole time again"
