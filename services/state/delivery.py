"""How a coordinator writes: only while it is the newest one, and noticing when the store was emptied.

Both hang on one key, the *marker*: who claims the store writes a name there that is greater than those of coordinators
before, and every batch is a transaction that holds only while the marker has that name.
"""

from __future__ import annotations

import re
import secrets
import time
from typing import Final, Literal, NamedTuple, cast

import redis
from redis.client import Pipeline

from services.state import events
from services.state.outbox import Batch
from services.state.record import encode, key_of
from services.state.store import StateStore, ttl_ms

_MARKER: Final = "writer"
_COMPLETE: Final = "complete"
_NAME: Final = re.compile(r"(\d{20})-[0-9a-f]{16}")


class Claim(NamedTuple):
    """The name to write under, and the youngest event that the store has."""

    writer: str
    last_event: int


def claim(store: StateStore, writer: str | None) -> Claim | Literal["again", "taken"]:
    """Become the one who writes.

    Args:
        store: to claim.
        writer: the name of an earlier claim; ``None``: the first one, which takes a name above all others. Names begin
            with the time, so that they grow even where a flush has removed the one before.

    Returns:
        ``taken``: a younger writer is there. ``again``: somebody else was at it, too.
    """
    marker = key_of(store.run, _MARKER)
    with store.guard(marker), store.client.pipeline() as pipe:
        _watch(pipe, marker)
        found = _NAME.fullmatch((cast(bytes | None, pipe.get(marker)) or b"").decode(errors="replace"))
        if writer is None:
            number = max(time.time_ns(), int(found[1]) + 1 if found else 0)
            writer = f"{number:020d}-{secrets.token_hex(8)}"
        elif found and found[0] > writer:
            return "taken"
        last_event = events.last(pipe, store.events_key)
        pipe.multi()
        pipe.set(marker, writer)
        try:
            pipe.execute()
        except redis.WatchError:
            return "again"
    return Claim(writer, last_event)


def deliver(store: StateStore, writer: str, batch: Batch, now_s: float) -> bool:
    """Write a batch, all of it or nothing; False: the store was emptied, or is another's, so claim it again."""
    marker = key_of(store.run, _MARKER)
    with store.guard(marker), store.client.pipeline() as pipe:
        _watch(pipe, marker)
        if cast(bytes | None, pipe.get(marker)) != writer.encode():
            return False
        pipe.multi()
        for write in batch.writes:
            if write.record is None:
                pipe.delete(write.key)
            else:
                ttl = None if write.expires_s is None else ttl_ms(write.expires_s - now_s)
                pipe.set(write.key, encode(write.record), px=ttl, nx=write.shared)
        for event in batch.events:
            events.append(pipe, store.events_key, event)
        if batch.last:
            pipe.set(key_of(store.run, _COMPLETE), writer)
        try:
            results = pipe.execute(raise_on_error=False)
        except redis.WatchError:
            return False
        for result in results:
            if isinstance(result, redis.RedisError) and not events.refused(result):
                raise result
    return True


def is_complete(store: StateStore) -> bool:
    """Whether the store has all that its writer had: not so after a flush, until everything was sent again.

    A coordinator that restarts must not take what is there for the run's state otherwise.
    """
    key = key_of(store.run, _COMPLETE)
    with store.guard(key):
        return bool(store.client.exists(key))


def _watch(pipe: Pipeline, key: str) -> None:
    """From now on the transaction holds only if nobody touches ``key``; until ``multi`` commands run at once."""
    pipe.watch(key)  # type: ignore[no-untyped-call]
