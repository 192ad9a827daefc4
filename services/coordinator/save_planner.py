"""When a living run saves: the policy, fed with what the run observes. Pure but for the numbers it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from checkpoint.budget import Recovery
from checkpoint.manifest import SaveKind
from checkpoint.mtbf import believed_mtbf_s, estimate_mtbf
from checkpoint.piece import Piece
from checkpoint.pls import ShardLoss, charge, covered_samples
from checkpoint.save_policy import SaveHistory, SaveOrder, SavePlan, SavePolicy, Situation
from services.config import RunConfig
from services.plan_saves import estimate_costs, losses, piece_save_bytes

_NEW_SHARE = 0.3
"""Weight of the newest measurement of a cost."""


class SavePlanner:
    """Keeps the history of a run's saves and failures. Not thread-safe."""

    def __init__(self, config: RunConfig, pieces: Sequence[Sequence[Piece]], shards_per_node: Sequence[int]) -> None:
        self._settings = config.checkpoint
        self._policy = SavePolicy(config.checkpoint, config.embedding.optimizer)
        self._costs, self._estimated = estimate_costs(
            config.checkpoint.costs, [sum(piece_save_bytes(config, piece) for piece in own) for own in pieces]
        )
        _, self._shares = losses(pieces, shards_per_node)
        weights = [sum(piece.numel for piece in own) for own in pieces]
        self.shares = [weight / sum(weights) for weight in weights]
        """Portion of all weights that each shard has."""
        self.history = SaveHistory()
        self._saves: list[tuple[SaveKind, int]] = []
        self._measured = False
        self.row_losing_failures = 0
        self.spent_pls = 0.0
        self.effective_pls: float | None = 0.0
        self.mtbf_s = believed_mtbf_s(self._settings.mtbf_s, 0, 0.0)
        """Mean time between failures that lose rows, of the plan."""
        self.observed_mtbf = estimate_mtbf(0, 0.0)
        """What this run alone tells of it."""
        self.plan = self._policy.plan(Situation(self._costs, self.mtbf_s, self._shares))

    def replan(self, useful_s: float, trained_samples: int, total_samples: int) -> SavePlan:
        """The plan as of now; the length of the run follows from its speed so far."""
        run_s = self._settings.expected_run_s
        if trained_samples and useful_s > 0.0:
            run_s = max(useful_s, useful_s * total_samples / trained_samples)
        mtbf_s = believed_mtbf_s(self._settings.mtbf_s, self.row_losing_failures, useful_s)
        self.mtbf_s, self.observed_mtbf = mtbf_s, estimate_mtbf(self.row_losing_failures, useful_s)
        self.plan = self._policy.plan(
            Situation(self._costs, mtbf_s, self._shares, run_s, min(useful_s, run_s or useful_s), self.spent_pls)
        )
        return self.plan

    def due(self, useful_s: float) -> SaveOrder | None:
        """The save that is due, if any."""
        return self._policy.due(self.plan, self.history, useful_s)

    def saved(self, order: SaveOrder, useful_s: float, samples: int, stall_s: float) -> None:
        """A save is complete, cut at ``useful_s`` and ``samples``; it held training up for ``stall_s``."""
        before = covered_samples(self._saves, self._settings.priority_fraction)
        if order.kind == "full":
            self._saves.clear()
        self._saves.append((order.kind, samples))
        history = self.history
        full = order.kind == "full"
        self.history = SaveHistory(
            last_s=useful_s,
            last_full_s=useful_s if full else history.last_full_s,
            last_consistent_s=useful_s if order.consistent else history.last_consistent_s,
            covered_s=useful_s if full or order.kind == "delta" else history.covered_s,
            deltas=0 if full else history.deltas + (order.kind == "delta"),
        )
        if order.kind == "priority" and self.covered_samples > before:
            self.history = replace(self.history, covered_s=useful_s)
        if full and "save_s" in self._estimated:
            share = _NEW_SHARE if self._measured else 1.0
            self._costs = replace(self._costs, save_s=(1 - share) * self._costs.save_s + share * stall_s)
            self._measured = True

    @property
    def saves(self) -> tuple[tuple[SaveKind, int], ...]:
        """Kind and samples of those since the last full one."""
        return tuple(self._saves)

    def recall(self, saves: Sequence[tuple[SaveKind, int]], history: Mapping[str, Any]) -> None:
        """After a restart of the coordinator: what was saved before."""
        self._saves, self.history = list(saves), SaveHistory(**history)

    def resumed(self, spent_pls: float, effective_pls: float | None, row_losing_failures: int) -> None:
        """The run had a past: what it spent stays spent."""
        self.spent_pls, self.effective_pls, self.row_losing_failures = spent_pls, effective_pls, row_losing_failures

    def restored(self, samples: int, useful_s: float) -> None:
        """Everybody went back to a full, consistent save, or one that stands for it."""
        self._saves = [("full", samples)]
        self.history = SaveHistory(useful_s, useful_s, useful_s, useful_s)

    @property
    def budget(self) -> float:
        """``checkpoint.pls_budget``."""
        return self._settings.pls_budget

    def charge_accesses(self, pending: int | None, accesses: int | None) -> None:
        """Lost rows had ``pending`` accesses since each was saved, of the run's ``accesses`` in all."""
        if self.effective_pls is not None:
            self.effective_pls = self.effective_pls + pending / accesses if pending is not None and accesses else None

    @property
    def covered_samples(self) -> int:
        """Samples up to which every row is saved."""
        return covered_samples(self._saves, self._settings.priority_fraction)

    def loss(self, shard_ids: Sequence[int], samples: int, pending: dict[int, int | None]) -> list[ShardLoss]:
        """What losing the rows of these shards at ``samples`` would lose."""
        lost = max(0, samples - self.covered_samples)
        return [ShardLoss(i, self.shares[i], lost, pending.get(i)) for i in shard_ids]

    def recovery(self, losses: Sequence[ShardLoss], total_samples: int) -> Recovery:
        """Partial or full, and why."""
        return self._policy.recovery(self.plan, charge(losses, total_samples), self.spent_pls)
