"""What the store should hold and what of it is not there yet. Pure; not thread-safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from services.state.record import Record
from services.state.run_records import EventRecord


@dataclass(frozen=True, slots=True)
class Write:
    """The newest value of a key.

    Attributes:
        key: where.
        record: what; ``None``: it is removed.
        expires_s: when it is no longer true, by the clock that ``Outbox.take`` is given; ``None``: never.
        shared: others change it too, so it is written only where there is nothing.
    """

    key: str
    record: Record | None
    expires_s: float | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """What to send next. ``last``: nothing else waits."""

    writes: tuple[Write, ...]
    events: tuple[EventRecord, ...]
    last: bool


class Outbox:
    """Keeps one value a key and the youngest events, sent or not, since a store that was emptied needs them again."""

    def __init__(self, max_keys: int, max_events: int) -> None:
        self._max_keys, self._max_events = max_keys, max_events
        self._newest: dict[str, Write] = {}
        self._unsent: dict[str, None] = {}  # keys, the one that waits longest first
        self._sent_events: deque[EventRecord] = deque()
        self._events: deque[EventRecord] = deque()
        self._last_sequence = 0
        self.dropped_events = 0
        """Events that were never sent, as too many waited."""

    @property
    def empty(self) -> bool:
        """Everything was sent."""
        return not self._unsent and not self._events

    def put(self, write: Write) -> bool:
        """Replace a key's value; False: there are too many keys, and this one is new."""
        if write.key not in self._newest and len(self._newest) >= self._max_keys:
            return False
        self._newest[write.key] = write
        self._unsent[write.key] = None
        return True

    def append(self, event: EventRecord) -> None:
        """Add an event.

        Raises:
            ValueError: its sequence is not above those before; the store would refuse it as one that it has.
        """
        if event.sequence <= self._last_sequence:
            raise ValueError(f"event {event.sequence} comes after event {self._last_sequence}: events go in order")
        self._last_sequence = event.sequence
        self._events.append(event)
        if len(self._events) + len(self._sent_events) > self._max_events:
            if self._sent_events:
                self._sent_events.popleft()
            else:
                self._events.popleft()
                self.dropped_events += 1

    def take(self, limit: int, now_s: float) -> Batch:
        """At most ``limit`` values and ``limit`` events, oldest first; they stay until ``sent``."""
        writes: list[Write] = []
        for key in list(self._unsent):
            if len(writes) == limit:
                break
            write = self._newest[key]
            if write.expires_s is not None and write.expires_s <= now_s:
                del self._unsent[key], self._newest[key]
            else:
                writes.append(write)
        events = tuple(islice(self._events, limit))
        last = len(writes) == len(self._unsent) and len(events) == len(self._events)
        return Batch(tuple(writes), events, last)

    def sent(self, batch: Batch) -> None:
        """The store has them; what was put meanwhile still waits."""
        for write in batch.writes:
            if self._newest.get(write.key) is write:
                self._unsent.pop(write.key, None)
                if write.record is None:
                    del self._newest[write.key]
        if batch.events:
            self._acknowledge(batch.events[-1].sequence)

    def resend(self, last_event: int) -> None:
        """Send everything again; the store has the events up to ``last_event``."""
        self._unsent.update(dict.fromkeys(self._newest))
        self._events.extendleft(reversed(self._sent_events))
        self._sent_events.clear()
        self._acknowledge(last_event)

    def _acknowledge(self, sequence: int) -> None:
        self._sent_events.extend(_popped(self._events, sequence))


def _popped(events: deque[EventRecord], sequence: int) -> Iterable[EventRecord]:
    while events and events[0].sequence <= sequence:
        yield events.popleft()
