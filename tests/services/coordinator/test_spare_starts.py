"""Spares that die are not started again and again without end."""

from __future__ import annotations

from services.coordinator.spare_starts import SAID_DELAY_S, SpareStarts


def test_one_that_dies_is_back_at_once_and_those_that_never_live_ever_later() -> None:
    starts, now = SpareStarts(), 1000.0
    assert starts.due(now) == []
    delays = []
    for _ in range(14):
        delays.append(starts.died(0, "node", now))
        assert starts.due(now + delays[-1] - 0.01) == []
        now += delays[-1]
        assert starts.due(now) == [(0, "node")]
        starts.started(0, now)
        assert starts.due(now + 1e6) == [], "it is started once"
        now += 2.0
    assert delays == [0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0, 300.0, 300.0]
    assert delays.count(SAID_DELAY_S) == 1
    assert starts.died(0, "node", now + 100.0) == 0.0, "it lived, so all is well"


def test_indices_do_not_wait_for_each_other() -> None:
    starts = SpareStarts()
    for _ in range(5):
        starts.died(0, "a", 0.0)
        starts.started(0, 0.0)
    assert starts.died(0, "a", 1.0) > 0
    assert starts.died(1, "b", 1.0) == 0
    assert starts.due(1.0) == [(1, "b")]
