"""What to do when something dies: a pure decision on an event and the run's history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["replace", "fail"]


@dataclass(frozen=True, slots=True)
class FailureEvent:
    """A death, as the coordinator saw it.

    ``cause`` is what is known of it, such as ``process died`` or ``no heartbeat for 15 s``.
    """

    role: str
    index: int
    generation: int
    cause: str
    at_samples: int


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """What the decision may depend on besides the event."""

    replacements: int
    max_failures: int


@dataclass(frozen=True, slots=True)
class Decision:
    """``replace``: a new generation goes on with what the dead one left. ``fail``: the run ends, for ``reason``."""

    action: Action
    reason: str


class RecoveryPolicy:
    """A trainer holds nothing that exists once, so it is replaced; any other loss ends the run."""

    def decide(self, event: FailureEvent, history: FailureHistory) -> Decision:
        """Decide; looks at nothing but its arguments."""
        who = f"{event.role} {event.index} (generation {event.generation})"
        if event.role != "trainer":
            return Decision("fail", f"{who}: {event.cause} after {event.at_samples} samples")
        if history.replacements >= history.max_failures:
            return Decision(
                "fail",
                f"{who}: {event.cause} after {event.at_samples} samples; failure.max_failures={history.max_failures} "
                "replacements are used up",
            )
        return Decision("replace", f"{who}: {event.cause} after {event.at_samples} samples; replaced")
