"""``StateStore``: typed records of one run in Redis or Valkey. Every call is one attempt with a short timeout."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Generic, NamedTuple, cast

import redis

from services.state import events
from services.state.client import connect
from services.state.errors import EtagMismatchError, StateStoreUnavailableError
from services.state.record import R, Record, decode, encode, etag_of, key_of
from services.state.run_records import EventRecord
from services.state.url import public_url
from services.state.valkey import LOG, EmbeddedValkey

_STATE: Final = "state"
_SCAN_KEYS: Final = 500

_COMPARE_AND_SET: Final = """
local now = redis.call('GET', KEYS[1])
local etag = now and redis.sha1hex(now) or ''
if etag ~= ARGV[1] then return etag end
if ARGV[3] == '' then redis.call('SET', KEYS[1], ARGV[2]) else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return false
"""
"""KEYS: the record's key. ARGV: the expected etag, the new text, its time to live in ms. Returns the etag found
instead, or nothing when the record was set."""


class Stored(NamedTuple, Generic[R]):
    """A record as it was read, and the etag to change it with."""

    record: R
    etag: str


class StateStore:
    """Thread-safe; holds no state but connections. Errors: ``StateStoreUnavailableError`` whatever the store did."""

    def __init__(self, url: str, run: str, *, timeout_s: float = 1.0, embedded: EmbeddedValkey | None = None) -> None:
        """Connects with the first call.

        Args:
            url: ``redis://``, ``rediss://`` or ``unix://``.
            run: whose records; other runs on the same server are not seen.
            timeout_s: for connecting, and for each answer.
            embedded: the private server behind ``url``; closed with this store.

        Raises:
            ValueError: ``url`` is not one.
        """
        self._client = connect(url, timeout_s)
        self.run, self.embedded, self.public_url = run, embedded, public_url(url)
        self._compare_and_set = self._client.register_script(_COMPARE_AND_SET)

    @classmethod
    def open(
        cls, redis_url: str | None, run: str, directory: str | os.PathLike[str], *, timeout_s: float = 1.0
    ) -> StateStore:
        """The store that ``state.redis_url`` names, or a private server in the run's ``directory``.

        Raises:
            StateDirectoryInUseError, StateStoreUnavailableError: the private server cannot be started.
        """
        if redis_url is not None:
            return cls(redis_url, run, timeout_s=timeout_s)
        embedded = EmbeddedValkey(Path(directory) / _STATE)
        return cls(embedded.url, run, timeout_s=timeout_s, embedded=embedded)

    def get(self, record_type: type[R], name: str = "") -> Stored[R] | None:
        """A record and its etag; ``None``: there is none.

        Raises:
            UnreadableRecordError: another version wrote it.
        """
        key = self.key(record_type, name)
        with self.guard(key):
            text = cast(bytes | None, self._client.get(key))
        return None if text is None else Stored(decode(record_type, key, text), etag_of(text))

    def put(self, record: Record, ttl_s: float | None = None) -> str:
        """Write a record over whatever is there; returns its etag. It disappears after ``ttl_s``."""
        key, text = self.key(type(record), record.name), encode(record)
        with self.guard(key):
            self._client.set(key, text, px=ttl_ms(ttl_s))
        return etag_of(text)

    def compare_and_set(self, record: Record, etag: str | None, ttl_s: float | None = None) -> str:
        """Write a record if it still is what was read; returns the new etag. Atomic.

        After a ``StateStoreUnavailableError`` it may or may not be written: read it again.

        Args:
            record: what to write.
            etag: of what was read; ``None``: there was nothing.
            ttl_s: after which it disappears.

        Raises:
            EtagMismatchError: somebody was faster.
        """
        key, text = self.key(type(record), record.name), encode(record)
        with self.guard(key):
            found = self._compare_and_set(keys=[key], args=[etag or "", text, ttl_ms(ttl_s) or ""])
        if found is not None:
            raise EtagMismatchError(key, etag, found.decode() or None)
        return etag_of(text)

    def delete(self, record_type: type[Record], name: str = "") -> bool:
        """Remove a record; False: there was none."""
        key = self.key(record_type, name)
        with self.guard(key):
            return bool(self._client.delete(key))

    def find(self, record_type: type[R], prefix: str = "") -> list[R]:
        """Records of a kind whose name begins with ``prefix``, by name. What changes meanwhile may be old or new."""
        start = key_of(self.run, record_type.kind, "")
        with self.guard(start):
            keys = sorted(self._scan(f"{_literal(start)}:{_literal(prefix)}*"))
            texts = cast(list[bytes | None], self._client.mget(keys)) if keys else []
        found = zip(keys, texts, strict=True)
        return [decode(record_type, key.decode(), text) for key, text in found if text is not None]

    def append_event(self, event: EventRecord) -> bool:
        """Append to the run's stream; False: this event or a younger one is there, and nothing was changed."""
        with self.guard(self.events_key):
            return events.append(self._client, self.events_key, event)

    def read_events(self, after: int = 0, limit: int | None = None) -> list[EventRecord]:
        """Events with a sequence above ``after``, oldest first, at most ``limit``."""
        with self.guard(self.events_key):
            return events.read(self._client, self.events_key, after, limit)

    def last_event(self) -> int:
        """Sequence of the youngest event; 0: there is none."""
        with self.guard(self.events_key):
            return events.last(self._client, self.events_key)

    def clear(self) -> None:
        """Remove everything of this run: a fresh run must not find what a former one of its name left."""
        pattern = f"{_literal(key_of(self.run, ''))}*"
        with self.guard(pattern):
            for key in self._scan(pattern):
                self._client.unlink(key)

    def close(self) -> None:
        """Close connections, and the private server with them."""
        self._client.close()
        if self.embedded is not None:
            self.embedded.close()

    def key(self, record_type: type[Record], name: str = "") -> str:
        """Where a record is."""
        return key_of(self.run, record_type.kind, name)

    @property
    def events_key(self) -> str:
        """Where the stream is."""
        return key_of(self.run, "events")

    @property
    def client(self) -> redis.Redis:
        """For several commands at once, under ``guard``."""
        return self._client

    @contextlib.contextmanager
    def guard(self, key: str | None = None) -> Iterator[None]:
        """Turns every failure of the store into ``StateStoreUnavailableError``."""
        try:
            yield
        except (redis.RedisError, OSError) as error:
            cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            if self.embedded is not None:
                cause += f" (its log: {self.embedded.directory / LOG})"
            raise StateStoreUnavailableError(self.public_url, key, cause) from error

    def _scan(self, pattern: str) -> set[bytes]:
        return set(self._client.scan_iter(match=pattern, count=_SCAN_KEYS))


def ttl_ms(ttl_s: float | None) -> int | None:
    """Time to live for the server, at least 1 ms."""
    return None if ttl_s is None else max(1, round(ttl_s * 1000))


def _literal(text: str) -> str:
    """``text`` inside a glob pattern."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)
