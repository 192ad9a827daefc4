"""Records of who is there: the run, its role instances, their signs of life, and what happened."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, JsonValue

from services.identity import Address, Role
from services.memory.process import ProcessIdentity
from services.state.record import Count, Part, Record, Seconds

HEARTBEAT_TTL_S: Final = 60.0
"""The longest ``failure.heartbeat_s`` allowed."""


class RunRecord(Record):
    """The run as a whole."""

    kind: ClassVar[str] = "run"
    run: str
    state: Literal["STARTING", "RUNNING", "STOPPING", "SUCCEEDED", "FAILED", "CANCELLED"]
    timeline: Count
    """Full rollbacks so far."""
    config_hash: str
    """Of the resolved configuration: a coordinator that restarts refuses the state of another one."""
    started_unix_s: Seconds
    coordinator: ProcessIdentity
    coordinator_node_id: str
    error: str | None = None


class RoleRecord(Record):
    """A role instance and its newest incarnation. It stays when that dies, so that no generation is given twice."""

    kind: ClassVar[str] = "role"
    role: Role
    index: Count
    generation: Annotated[int, Field(ge=1)]
    state: Literal["STARTING", "ALIVE", "GONE"]
    node_id: str
    handle: str
    """How to call it again, opaque to the store."""
    process: ProcessIdentity | None = None
    """``None`` until it was heard."""

    @property
    def name(self) -> str:
        """``shard:3``."""
        return f"{self.role}:{self.index}"

    @property
    def address(self) -> Address:
        """Of this incarnation."""
        return Address(self.role, self.index, self.generation)


class HeartbeatRecord(Record):
    """The last sign of life of an incarnation, written with ``HEARTBEAT_TTL_S``; for people and other programs.

    Who is dead is decided by what reaches the coordinator, not by this copy.
    """

    kind: ClassVar[str] = "heartbeat"
    role: Role
    index: Count
    generation: Annotated[int, Field(ge=1)]
    node_id: str
    process: ProcessIdentity
    at_unix_s: Seconds
    samples: Count | None = None
    """Trained by it so far, where it trains."""

    @property
    def name(self) -> str:
        """``trainer:0``."""
        return f"{self.role}:{self.index}"


class EventRecord(Part):
    """One line of ``events.jsonl``, an entry of the run's stream."""

    sequence: Annotated[int, Field(ge=1, lt=2**63)]
    """Counts the run's events, over restarts of the coordinator too; the entry's id."""
    time_unix_s: Seconds
    what: str
    """Its ``kind`` in ``events.jsonl``."""
    fields: dict[str, JsonValue] = Field(default_factory=dict)
