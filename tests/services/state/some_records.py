"""Records to write."""

from __future__ import annotations

from services.memory.process import ProcessIdentity
from services.state.quality_records import PlsRecord
from services.state.run_records import EventRecord, HeartbeatRecord, RoleRecord


def pls(samples: int) -> PlsRecord:
    return PlsRecord(total_samples=samples, total_accesses=1, spent=0.25, effective=None)


def role(index: int, generation: int = 1) -> RoleRecord:
    return RoleRecord(role="shard", index=index, generation=generation, state="ALIVE", node_id="n", handle="h")


def heartbeat(index: int) -> HeartbeatRecord:
    process = ProcessIdentity(1, 2)
    return HeartbeatRecord(role="trainer", index=index, generation=1, node_id="n", process=process, at_unix_s=1.0)


def event(sequence: int) -> EventRecord:
    return EventRecord(sequence=sequence, time_unix_s=1.0, what="stage", fields={"number": sequence})
