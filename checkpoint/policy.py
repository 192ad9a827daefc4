"""What to do when something dies: a pure decision on an event and the run's history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from checkpoint.budget import Recovery

Action = Literal["replace", "adopt", "restore", "roll_back", "renew", "restart", "ignore", "fail"]


@dataclass(frozen=True, slots=True)
class FailureEvent:
    """A death, as the coordinator saw it.

    ``cause`` is what is known of it, such as ``process died`` or ``no heartbeat for 15 s``. ``memory_held``: the memory
    in which it kept its state is still there. ``rows``: how the quality budget would have its rows recovered if not;
    ``None``: nothing is saved.
    """

    role: str
    index: int
    generation: int
    cause: str
    at_samples: int
    memory_held: bool = False
    rows: Recovery | None = None


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """What the decision may depend on besides the event."""

    replacements: int
    max_failures: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and why.

    ``replace``: a new trainer; its rows are queued again. ``adopt``: warm recovery of a shard, nothing is lost.
    ``restore``: only that shard, from saves. ``roll_back``: everybody, to one save. ``renew``: a new keeper, to which
    the living of its node hand their memory. ``restart``: a sync server, filled from the trainers. ``ignore``: nothing
    depended on it. ``fail``: the run ends.
    """

    action: Action
    reason: str


class RecoveryPolicy:
    """A trainer holds nothing that exists once; a shard's rows do, and as long as their memory is there all is well."""

    def decide(self, event: FailureEvent, history: FailureHistory) -> Decision:
        """Decide; looks at nothing but its arguments."""
        who = f"{event.role} {event.index} (generation {event.generation})"
        what = f"{who}: {event.cause} after {event.at_samples} samples"
        if event.role == "spare":
            return Decision("ignore", f"{what}; it was idle")
        if history.replacements >= history.max_failures:
            return Decision("fail", f"{what}; failure.max_failures={history.max_failures} replacements are used up")
        if event.role == "keeper":
            return Decision("renew", f"{what}; a new one takes its node's memory over from those who live")
        if event.role == "sync_server":
            return Decision("restart", f"{what}; the trainers hold all it knew")
        if event.role != "shard":
            return Decision("replace", f"{what}; replaced")
        if event.memory_held:
            return Decision("adopt", f"{what}; its rows are still in the keeper's memory")
        if event.rows is None:
            return Decision("fail", f"{what}; its rows are gone with it, and checkpoint.enabled is false")
        if event.rows.mode == "partial":
            return Decision("restore", f"{what}; its rows are gone: {event.rows.reason}")
        return Decision("roll_back", f"{what}; its rows are gone: {event.rows.reason}")
