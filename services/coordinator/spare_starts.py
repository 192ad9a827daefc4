"""When a spare that died is started again: at once, or later and later when they do not live. Pure."""

from __future__ import annotations

_LONG_LIFE_S = 60.0
_FIRST_DELAY_S, _LAST_DELAY_S = 1.0, 300.0
_AT_ONCE = 2

SAID_DELAY_S = 4.0
"""The delay that is worth telling a person."""


class SpareStarts:
    """By index of the spare; times are those of the caller's clock."""

    def __init__(self) -> None:
        self._started_s: dict[int, float] = {}
        self._early: dict[int, int] = {}
        self._waiting: dict[int, tuple[float, str]] = {}

    def started(self, index: int, now_s: float) -> None:
        """A process of it begins."""
        self._started_s[index] = now_s
        self._waiting.pop(index, None)

    def died(self, index: int, node_id: str, now_s: float) -> float:
        """It died idle; returns after how many seconds ``due`` gives it: 0 unless several in a row died young."""
        young = now_s - self._started_s.get(index, -_LONG_LIFE_S) < _LONG_LIFE_S
        self._early[index] = early = self._early.get(index, 0) + 1 if young else 0
        doublings = early - _AT_ONCE
        delay_s = 0.0 if doublings < 0 else min(_LAST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(doublings, 30))
        self._waiting[index] = now_s + delay_s, node_id
        return delay_s

    def due(self, now_s: float) -> list[tuple[int, str]]:
        """Index and node of those to start now; ``started`` follows."""
        return [(index, node_id) for index, (at_s, node_id) in sorted(self._waiting.items()) if at_s <= now_s]
