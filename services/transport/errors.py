"""What a trainer sees when a shard is gone."""

from __future__ import annotations

from services.identity import Address


class ShardUnavailableError(RuntimeError):
    """A shard died or cannot be reached; what was in flight to it was not acknowledged."""

    def __init__(self, shard: Address, cause: str) -> None:
        super().__init__(f"{shard} is unavailable: {cause}")
        self.shard, self.cause = shard, cause

    def __reduce__(self) -> tuple[type[ShardUnavailableError], tuple[Address, str]]:
        return type(self), (self.shard, self.cause)
