"""Where a worker thread's time goes."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class PhaseSeconds:
    """Seconds one or several worker threads spent; ``busy_s`` is their sum over threads."""

    input: float = 0.0
    lookup_wait: float = 0.0
    dense: float = 0.0
    push: float = 0.0
    sync_stall: float = 0.0
    other: float = 0.0

    def add(self, more: PhaseSeconds) -> None:
        """Add another thread's seconds."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(more, field.name))

    def as_dict(self) -> dict[str, float]:
        """Seconds by phase."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def busy_s(self) -> float:
        """Sum of all phases."""
        return sum(self.as_dict().values())
