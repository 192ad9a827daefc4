"""``StateMirror``: keeps the store up to date from a thread of its own, so that its outages stop nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from services.state.delivery import claim, deliver
from services.state.errors import StateStoreUnavailableError
from services.state.outbox import Outbox, Write
from services.state.record import Record
from services.state.run_records import EventRecord
from services.state.store import StateStore

_BATCH: Final = 256
_COALESCE_S: Final = 0.02
_FIRST_RETRY_S: Final = 0.05
_LONGEST_RETRY_S: Final = 2.0
_HUNG_S: Final = 10.0
"""A private server that does not answer for so long is killed and started again."""


class StoreChange(NamedTuple):
    """The event ``state_store``.

    Attributes:
        state: ``away``: what is written waits. ``back``: all of it was sent. ``taken``: another coordinator writes now,
            and this one never will again. ``full``: a record has no place here, since there are too many.
        detail: why.
        seconds: that it was away; 0 for the others.
        dropped_events: events that had no room to wait in, so far; ``events.jsonl`` has them.
    """

    state: Literal["away", "back", "taken", "full"]
    detail: str
    seconds: float = 0.0
    dropped_events: int = 0


class StateMirror:
    """The store follows what is put here: the newest value of every key, every event once and in order.

    Whoever uses it is the only writer of its records, but for *shared* ones. A private server that died or hangs is
    started again.
    """

    def __init__(
        self,
        store: StateStore,
        on_change: Callable[[StoreChange], None],
        *,
        max_keys: int = 20_000,
        max_events: int = 10_000,
        check_s: float = 1.0,
    ) -> None:
        """Start; the store may be away.

        Args:
            store: closed by its owner, after this.
            on_change: told of outages, from this object's thread.
            max_keys: bound of the records that are kept here.
            max_events: bound of the events that are kept here, sent ones included.
            check_s: how often an idle mirror looks whether the store was emptied.
        """
        self._store, self._on_change, self._check_s = store, on_change, check_s
        self._writer: str | None = None
        self._outbox = Outbox(max_keys, max_events)
        self._changed = threading.Condition()
        self._claimed = self._closing = self._taken = self._hurry = False
        self._begun = self._done = 0  # exchanges, by number
        self._refused: str | None = None
        self._told_full = False
        self._away_since: float | None = None
        self._repaired_at = 0.0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="state-mirror", daemon=True)
        self._thread.start()

    def put(self, record: Record, ttl_s: float | None = None, *, shared: bool = False) -> None:
        """The record's newest value; never blocks.

        Args:
            record: what to write.
            ttl_s: when it is no longer true, from now on, whenever it is sent.
            shared: others change it by compare-and-set; it is written only where it is missing, as after a flush.
        """
        expires_s = None if ttl_s is None else time.monotonic() + ttl_s
        self._add(Write(self._store.key(type(record), record.name), record, expires_s, shared))

    def delete(self, record_type: type[Record], name: str = "") -> None:
        """The record is gone; never blocks."""
        self._add(Write(self._store.key(record_type, name), None))

    def append(self, event: EventRecord) -> None:
        """One more event; never blocks.

        Raises:
            ValueError: its sequence is not above those before.
        """
        with self._changed:
            self._outbox.append(event)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is sent and seen there; False: it is not, within ``timeout_s`` or ever."""
        with self._changed:
            wanted = self._begun + 1  # the exchange under way may have looked before the store was emptied
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: (self._sent and self._done >= wanted) or self._over, timeout_s)
            if self._error is not None:
                raise self._error
            return self._sent and self._done >= wanted

    def close(self, timeout_s: float = 5.0) -> bool:
        """Send what can be sent within ``timeout_s`` and stop; returns whether everything was. May be called again."""
        complete = self.flush(timeout_s) if self._thread.is_alive() else self._sent
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        return complete

    @property
    def away(self) -> bool:
        """Whether the store is away now."""
        return self._away_since is not None

    @property
    def _sent(self) -> bool:
        return self._claimed and self._outbox.empty

    @property
    def _over(self) -> bool:
        return self._taken or self._closing or self._error is not None

    def _add(self, write: Write) -> None:
        with self._changed:
            if not self._outbox.put(write):
                self._refused = write.key
            self._changed.notify_all()

    def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        try:
            while not self._over:
                try:
                    self._exchange()
                except StateStoreUnavailableError as error:
                    self._went_away(error)
                    if not self._repair():
                        self._pause(retry_s, lambda: self._hurry)
                        retry_s = min(2 * retry_s, _LONGEST_RETRY_S)
                else:
                    retry_s = _FIRST_RETRY_S
                    self._pause(_COALESCE_S, lambda: self._hurry)
                    self._pause(self._check_s, lambda: self._hurry or not self._sent)
        except BaseException as error:
            self._error = error
        with self._changed:
            self._changed.notify_all()

    def _pause(self, seconds: float, until: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or until(), seconds)

    def _exchange(self) -> None:
        """Send what waits, or look whether what was sent is still there."""
        with self._changed:
            self._begun += 1
            self._hurry = False
        if self._refused is not None and not self._told_full:
            self._told_full = True
            self._on_change(StoreChange("full", f"no room for {self._refused}: too many records"))
        if not self._claimed and not self._claim():
            return
        while True:
            with self._changed:
                now_s = time.monotonic()
                batch = self._outbox.take(_BATCH, now_s)
            if self._writer is None or not deliver(self._store, self._writer, batch, now_s):
                self._claimed = False
                if not self._claim():
                    return
                continue
            with self._changed:
                self._outbox.sent(batch)
                if batch.last:
                    self._done = self._begun
                    self._changed.notify_all()
                    break
        self._came_back()

    def _claim(self) -> bool:
        """Become the writer, and send everything: values that were acknowledged may be lost with a server."""
        while isinstance(answer := claim(self._store, self._writer), str):
            if answer == "taken":
                self._taken = True
                self._on_change(StoreChange("taken", "another coordinator of this run writes there now"))
                return False
        self._writer = answer.writer
        with self._changed:
            self._outbox.resend(answer.last_event)
            self._claimed = True
        return True

    def _went_away(self, error: StateStoreUnavailableError) -> None:
        self._claimed = False
        if self._away_since is None:
            self._away_since = time.monotonic()
            self._on_change(StoreChange("away", str(error), 0.0, self._outbox.dropped_events))

    def _came_back(self) -> None:
        if self._away_since is not None:
            seconds = time.monotonic() - self._away_since
            self._away_since = None
            detail = f"everything was sent to {self._store.public_url}"
            self._on_change(StoreChange("back", detail, seconds, self._outbox.dropped_events))

    def _repair(self) -> bool:
        """Start a private server again that died, or hangs for long; False: nothing to do, or it does not help."""
        server, now_s = self._store.embedded, time.monotonic()
        if server is None or self._closing:
            return False
        hung = now_s - max(self._away_since or now_s, self._repaired_at) > _HUNG_S
        if not server.exited and not hung:
            return False
        self._repaired_at = now_s
        try:
            server.restart()
        except StateStoreUnavailableError:
            return False
        return True
