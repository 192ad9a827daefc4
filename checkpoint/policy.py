"""What to do when something dies: a pure decision on an event and the run's history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["replace", "adopt", "ignore", "fail"]


@dataclass(frozen=True, slots=True)
class FailureEvent:
    """A death, as the coordinator saw it.

    ``cause`` is what is known of it, such as ``process died`` or ``no heartbeat for 15 s``. ``memory_held``: the memory
    in which it kept its state is still there.
    """

    role: str
    index: int
    generation: int
    cause: str
    at_samples: int
    memory_held: bool = False


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """What the decision may depend on besides the event."""

    replacements: int
    max_failures: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and why.

    ``replace``: a new trainer; its rows are queued again. ``adopt``: warm recovery of a shard, nothing is lost.
    ``ignore``: nothing depended on it. ``fail``: the run ends.
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
        if event.role not in ("trainer", "shard"):
            return Decision("fail", what)
        if event.role == "shard" and not event.memory_held:
            return Decision("fail", f"{what}; its rows are gone with it")
        if history.replacements >= history.max_failures:
            return Decision("fail", f"{what}; failure.max_failures={history.max_failures} replacements are used up")
        if event.role == "shard":
            return Decision("adopt", f"{what}; its rows are still in the keeper's memory")
        return Decision("replace", f"{what}; replaced")
