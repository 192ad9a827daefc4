"""Plans saves for placed tables: their bytes, what a failure would lose, and the policy's choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from checkpoint.checkpoint_config import CostsConfig
from checkpoint.encodings import encoded_row_bytes
from checkpoint.manifest import Encoding
from checkpoint.mtbf import DEFAULT_MTBF_S
from checkpoint.overhead import Costs
from checkpoint.piece import Piece
from checkpoint.pls import LossShares, loss_shares
from checkpoint.priority.tables import prioritized
from checkpoint.save_policy import Option, SavePlan, SavePolicy, Situation
from services.config import RunConfig
from services.placement.memory import cost_of
from services.saves_report import OverheadShares, SaveCosts, SaveOption, SavesReport

_ID_BYTES = 8
"""Of a row in a priority save."""


def plan_saves(config: RunConfig, pieces: Sequence[Sequence[Piece]], shards_per_node: Sequence[int]) -> SavesReport:
    """What ``config.checkpoint`` comes to for ``pieces`` of each shard, shards counted through the nodes in order."""
    settings = config.checkpoint
    saved_bytes = [sum(piece_save_bytes(config, piece) for piece in own) for own in pieces]
    costs, estimated = estimate_costs(settings.costs, saved_bytes)
    loses, shares = losses(pieces, shards_per_node)
    mtbf_s = DEFAULT_MTBF_S if settings.mtbf_s is None else settings.mtbf_s
    policy = SavePolicy(settings, config.embedding.optimizer)
    plan = policy.plan(Situation(costs, mtbf_s, shares, settings.expected_run_s))
    assert plan.partial is not None  # nothing is spent yet
    full_every_s = min(plan.full_every_s, plan.consistent_age_s)
    flat = [piece for own in pieces for piece in own]
    chosen = prioritized(_rows(flat)) if plan.strategy.startswith("cpr_") else ()
    full_bytes = sum(saved_bytes)
    return SavesReport(
        strategy=plan.strategy,
        mode=plan.mode,
        reason=plan.reason,
        interval_s=plan.interval_s,
        save_every_s=plan.save_every_s,
        full_every_s=full_every_s if math.isfinite(full_every_s) else None,
        full_bytes=full_bytes,
        save_bytes=_save_bytes(config, flat, chosen) if chosen else full_bytes,
        tracker_bytes=sum(_tracker_bytes(config, plan, piece) for piece in flat if piece.table in chosen),
        prioritized=chosen,
        pls_budget=settings.pls_budget,
        mtbf_s=mtbf_s,
        mtbf_given=settings.mtbf_s is not None,
        loses=loses,
        mean_share=shares.mean,
        worst_share=shares.worst,
        run_s=settings.expected_run_s,
        costs=SaveCosts(
            save_s=costs.save_s,
            load_s=costs.load_s,
            reschedule_s=costs.reschedule_s,
            partial_load_s=costs.partial_load_s,
            partial_reschedule_s=costs.partial_reschedule_s,
            estimated=estimated,
        ),
        full=_option(plan.full),
        partial=_option(plan.partial),
    )


def estimate_costs(settings: CostsConfig, saved_bytes: Sequence[int]) -> tuple[Costs, tuple[str, ...]]:
    """Costs as set, and from the bytes of each shard's save where they are not; also the names of those.

    Shards save and load at the same time, so the largest one counts.
    """
    largest = max(saved_bytes, default=0)
    load_s = largest / settings.load_bytes_per_s
    guesses = {"save_s": largest / settings.save_bytes_per_s, "load_s": load_s, "partial_load_s": load_s}
    estimated = tuple(name for name in guesses if getattr(settings, name) is None)
    known = {name: guesses[name] if name in estimated else getattr(settings, name) for name in guesses}
    return Costs(
        reschedule_s=settings.reschedule_s, partial_reschedule_s=settings.partial_reschedule_s, **known
    ), estimated


def losses(
    pieces: Sequence[Sequence[Piece]], shards_per_node: Sequence[int]
) -> tuple[Literal["node", "shard"], LossShares]:
    """What a failure takes: a node with its shards; a shard where there is one node only, as then nobody is left."""
    weights = [sum(piece.numel for piece in own) for own in pieces]
    used = [count for count in shards_per_node if count]
    if len(used) > 1:
        ends = [sum(used[: index + 1]) for index in range(len(used))]
        weights = [sum(weights[end - count : end]) for count, end in zip(used, ends, strict=True)]
    total = sum(weights)
    return "node" if len(used) > 1 else "shard", loss_shares([weight / total for weight in weights])


def _encoding(config: RunConfig) -> Encoding:
    half = config.embedding.weights_precision == "fp16" and config.checkpoint.encoding == "fp32"
    return "fp16" if half else config.checkpoint.encoding


def piece_save_bytes(config: RunConfig, piece: Piece) -> int:
    """Bytes of a piece in a full save."""
    state = cost_of(piece.rows, piece.dim, config.embedding.optimizer).optimizer_bytes
    return piece.rows * encoded_row_bytes(piece.dim, _encoding(config)) + state


def _save_bytes(config: RunConfig, pieces: Sequence[Piece], chosen: Sequence[str]) -> int:
    """Of a priority save: r of the rows of prioritized tables, with their ids, and all rows of the others."""

    def of(piece: Piece) -> int:
        whole = piece_save_bytes(config, piece)
        if piece.table not in chosen:
            return whole
        rows = max(1, int(config.checkpoint.priority_fraction * piece.rows))
        return rows * (whole // piece.rows + _ID_BYTES)

    return sum(map(of, pieces))


def _tracker_bytes(config: RunConfig, plan: SavePlan, piece: Piece) -> int:
    """Closed forms of the trackers' memory."""
    if plan.strategy == "cpr_scar":
        return piece.numel * (2 if config.embedding.weights_precision == "fp16" else 4)
    if plan.strategy == "cpr_ssu":
        return 4 * max(1, int(config.checkpoint.priority_fraction * piece.rows))
    return 4 * piece.rows


def _rows(pieces: Sequence[Piece]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for piece in pieces:
        rows[piece.table] = max(rows.get(piece.table, 0), piece.row_end)
    return rows


def _option(option: Option) -> SaveOption:
    overhead = option.overhead
    return SaveOption(
        interval_s=option.interval_s,
        bounded_by=option.bounded_by,
        overhead=OverheadShares(
            saving=overhead.saving, recovering=overhead.recovering, lost_work=overhead.lost_work, total=overhead.total
        ),
        expected_pls=option.expected_pls,
        exact_expected_pls=option.exact_expected_pls,
    )
