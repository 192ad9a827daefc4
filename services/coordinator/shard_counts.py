"""What shards last said of accesses to their rows: all that is known of them once a shard is lost."""

from __future__ import annotations

from collections.abc import Mapping

import ray

from services.coordinator.directory import Directory


class ShardCounts:
    """Filled by heartbeats."""

    def __init__(self, total_samples: int) -> None:
        """``total_samples``: of the whole run."""
        self._total = total_samples
        self._last: dict[int, Mapping[str, int]] = {}

    def note(self, shard_id: int, stats: Mapping[str, int]) -> None:
        """A shard's counters."""
        if stats:
            self._last[shard_id] = stats

    def saved(self, pending: Mapping[int, int]) -> None:
        """A save is complete: what heartbeats from before it said is out of date."""
        for shard_id, count in pending.items():
            self._last[shard_id] = {**self._last.get(shard_id, {}), "pending_accesses": count}

    def restored(self, shard_id: int) -> None:
        """Its rows are those that were saved: what it lost is charged, and not to be charged again."""
        self._last[shard_id] = {**self._last.get(shard_id, {}), "pending_accesses": 0}

    def pending(self, shard_id: int) -> int | None:
        """Accesses to its rows since each was saved; ``None``: it never said."""
        return self._last.get(shard_id, {}).get("pending_accesses")

    def accesses(self) -> int | None:
        """Of the whole run, by the accesses a sample had so far; ``None``: nothing was trained yet."""
        per_sample = [
            stats["accesses"] / stats["samples"] for stats in self._last.values() if stats.get("samples", 0) > 0
        ]
        return round(sum(per_sample) * self._total) if per_sample else None


def shard_stats(directory: Directory, timeout_s: float) -> dict[int, dict[str, int]] | None:
    """What every shard says of itself now; ``None``: one does not answer."""
    calls = {entry.address.index: entry.actor.stats.remote() for entry in directory.all("shard")}
    try:
        return dict(zip(calls, ray.get(list(calls.values()), timeout=timeout_s), strict=True))
    except ray.exceptions.RayError:
        return None
