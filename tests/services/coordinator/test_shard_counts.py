"""Accesses that a loss charges, as far as heartbeats told of them."""

from __future__ import annotations

from services.coordinator.shard_counts import ShardCounts


def test_what_a_loss_charged_is_not_charged_again() -> None:
    """The shard dies again before its next incarnation was heard."""
    counts = ShardCounts(1000)
    counts.note(0, {"accesses": 400, "samples": 100, "pending_accesses": 40})
    assert (counts.pending(0), counts.accesses()) == (40, 4000)
    counts.restored(0)
    assert (counts.pending(0), counts.accesses()) == (0, 4000)
    counts.note(0, {"accesses": 8, "samples": 2, "pending_accesses": 8})
    assert counts.pending(0) == 8
    assert counts.pending(1) is None, "it never said"
