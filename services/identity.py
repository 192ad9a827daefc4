"""Who an actor is: (role, id, generation). Never a Ray actor name, which stays taken while its actor restarts."""

from __future__ import annotations

from typing import Literal, NamedTuple

Role = Literal["keeper", "shard", "spare", "trainer", "sync_server"]
"""A ``spare`` is an idle shard process that becomes a shard's next incarnation."""


class Address(NamedTuple):
    """One incarnation of a role instance; ``generation`` counts incarnations from 1."""

    role: Role
    index: int  # type: ignore[assignment]  # the role instance; nobody asks an address for tuple.index()
    generation: int

    def __str__(self) -> str:
        return f"{self.role}-{self.index}.g{self.generation}"


class StaleGenerationError(RuntimeError):
    """A call, slab or memory header came from, or was meant for, an older incarnation."""

    @classmethod
    def between(cls, what: str, got: int, current: int) -> StaleGenerationError:
        """Name what was refused, the generation it carried and the current one."""
        return cls(f"{what} carries generation {got}, the current one is {current}: refused")
