"""The run's events as a stream whose ids are their sequence numbers: the server refuses what it already has."""

from __future__ import annotations

from typing import Any, Final, cast

import redis

from services.state.errors import UnreadableRecordError
from services.state.run_records import EventRecord

_FIELD: Final = b"event"
_KEPT: Final = 100_000
"""About how many the store keeps; ``events.jsonl`` has them all."""

_REFUSED: Final = "equal or smaller than the target stream top item"


def append(client: redis.Redis, key: str, event: EventRecord) -> bool:
    """Append; False: refused, since this sequence or a greater one is there. In a pipeline: queue it."""
    try:
        client.xadd(
            key,
            {_FIELD: event.model_dump_json().encode()},
            id=f"{event.sequence}-0",
            maxlen=_KEPT,
            approximate=True,
        )
    except redis.ResponseError as error:
        if not refused(error):
            raise
        return False
    return True


def refused(error: object) -> bool:
    """Whether the server has this event, or a younger one."""
    return isinstance(error, redis.ResponseError) and _REFUSED in str(error)


def read(client: redis.Redis, key: str, after: int, limit: int | None) -> list[EventRecord]:
    """Events with a sequence above ``after``, oldest first."""
    entries = cast(list[tuple[bytes, dict[bytes, bytes]]], client.xrange(key, min=f"{after + 1}-0", count=limit))
    return [_event(key, entry_id, fields) for entry_id, fields in entries]


def last(client: redis.Redis, key: str) -> int:
    """Greatest sequence; 0: there is none."""
    entries = cast(list[tuple[bytes, Any]], client.xrevrange(key, count=1))
    return int(entries[0][0].partition(b"-")[0]) if entries else 0


def _event(key: str, entry_id: bytes, fields: dict[bytes, bytes]) -> EventRecord:
    try:
        return EventRecord.model_validate_json(fields[_FIELD])
    except (KeyError, ValueError):
        raise UnreadableRecordError(
            f"entry {entry_id.decode()} of {key} is not an event of this version of Penumbra: {fields!r:.200}"
        ) from None
