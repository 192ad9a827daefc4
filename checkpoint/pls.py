"""PLS, the portion of lost samples (CPR, arXiv 2011.02999): what partial recovery may cost in quality."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from checkpoint.manifest import SaveKind


@dataclass(frozen=True, slots=True)
class LossShares:
    """Portion of the model that a failure which loses rows takes: ``mean`` over what may fail, and at ``worst``."""

    mean: float
    worst: float


def loss_shares(shares: Sequence[float], failing: int = 1) -> LossShares:
    """Shares lost when ``failing`` (k) of the shards, or of the nodes, fail at once, any of them alike.

    Args:
        shares: each one's portion of all weights, together 1. The mean is k/N whatever they are, 1/N_emb in the paper.
        failing: how many at once.

    Raises:
        ValueError: the shares are not portions of one whole, or there are fewer than ``failing``.
    """
    if any(share < 0.0 for share in shares) or not math.isclose(math.fsum(shares), 1.0, abs_tol=1e-9):
        raise ValueError(f"shares of {len(shares)} shards must add up to 1, got {math.fsum(shares)}")
    if not 1 <= failing <= len(shares):
        raise ValueError(f"{failing} of {len(shares)} shards cannot fail at once")
    return LossShares(failing / len(shares), math.fsum(sorted(shares)[-failing:]))


def expected_pls(interval_s: float, mtbf_s: float, share: float) -> float:
    """First-order E[PLS] = T_save / (2·T_fail) × ``share``: every failure loses half an interval of that share.

    Too high when the interval is not small against the run: the last one is cut short. See ``exact_expected_pls``.
    """
    return 0.5 * interval_s / mtbf_s * share


def exact_expected_pls(interval_s: float, mtbf_s: float, share: float, run_s: float, rest_s: float = math.inf) -> float:
    """E[PLS] of the last ``rest_s`` of a run (all of it by default), summed over its whole intervals and the last one.

    Saves come at multiples of ``interval_s``, counted from the beginning of the rest.
    """
    rest_s = max(0.0, min(rest_s, run_s))
    whole, part_s = divmod(rest_s, interval_s)
    return _summed([(whole, interval_s), (1.0, part_s)], mtbf_s, share, run_s)


def exact_expected_pls_of(gaps_s: Iterable[float], mtbf_s: float, share: float, run_s: float) -> float:
    """E[PLS] when the times between saves of everything, the beginning and the end are ``gaps_s``."""
    return _summed([(1.0, gap_s) for gap_s in gaps_s], mtbf_s, share, run_s)


def _summed(gaps: Iterable[tuple[float, float]], mtbf_s: float, share: float, run_s: float) -> float:
    """Failures at random (Poisson): one falls into a gap of g with g/mtbf_s, and loses g/2 there on average."""
    return share * math.fsum(count * gap_s**2 for count, gap_s in gaps) / (2.0 * mtbf_s * run_s)


def partial_interval_s(pls: float, mtbf_s: float, share: float) -> float:
    """T_save = 2·PLS·T_fail / ``share``, the paper's 2·PLS·N_emb·T_fail: expects to spend ``pls`` over the run."""
    return 2.0 * pls * mtbf_s / share


def break_even_pls(save_s: float, mtbf_s: float, share: float) -> float:
    """The PLS above which partial recovery pays, when loading and rescheduling cost the same either way.

    Partial wins when its interval is more than half of Young's: PLS > sqrt(2·O_save/T_fail)/4 × ``share``.
    """
    return math.sqrt(2.0 * save_s / mtbf_s) / 4.0 * share


def covered_samples(saves: Iterable[tuple[SaveKind, int]], priority_fraction: float) -> int:
    """Samples up to which every row is saved, for the running PLS.

    Args:
        saves: (kind, samples) of the complete saves of the lineage, oldest first.
        priority_fraction: r; 1/r priority saves in a row are a round, which counts as a save of everything, as in the
            paper: PLS does not see which rows were saved. The effective PLS does.

    Returns:
        Samples at the last full save, delta save or completed round; 0 before the first.
    """
    round_saves = math.ceil(1.0 / priority_fraction - 1e-9)
    covered = in_round = 0
    for kind, samples in saves:
        in_round = in_round + 1 if kind == "priority" else 0
        if kind != "priority" or in_round == round_saves:
            covered, in_round = samples, 0
    return covered


@dataclass(frozen=True, slots=True)
class ShardLoss:
    """The rows of one shard, lost.

    Attributes:
        shard_id: which.
        share: its portion of all weights.
        lost_samples: samples trained since ``covered_samples``.
        pending_accesses: accesses to its rows since each row was saved, of the tracker; ``None``: not counted.
    """

    shard_id: int
    share: float
    lost_samples: int
    pending_accesses: int | None = None


def charge(losses: Iterable[ShardLoss], total_samples: int) -> float:
    """PLS of shards lost together: Σ share × lost samples / samples of the whole run.

    Raises:
        ValueError: the run has no samples.
    """
    if total_samples < 1:
        raise ValueError(f"a run of {total_samples} samples has no PLS")
    return math.fsum(loss.share * loss.lost_samples for loss in losses) / total_samples


class PlsAccount:
    """What a run has spent: PLS as the paper defines it, and beside it the *effective* PLS.

    Effective: accesses to lost rows since each row's saved version, of all accesses of the run. Priority saves lower
    it, as the rows they take are the ones accessed.
    """

    def __init__(self, total_samples: int, total_accesses: int) -> None:
        """``total_samples``, ``total_accesses``: of the whole run, all epochs and all tables."""
        if total_samples < 1 or total_accesses < 1:
            raise ValueError(f"a run of {total_samples} samples and {total_accesses} accesses has no PLS")
        self._total_samples, self._total_accesses = total_samples, total_accesses
        self.spent = 0.0
        self.effective: float | None = 0.0
        """``None`` once a loss came without its accesses."""

    def record(self, losses: Sequence[ShardLoss]) -> float:
        """Charge shards that were recovered partially, all of one failure; returns its PLS."""
        pls = charge(losses, self._total_samples)
        self.spent += pls
        accesses = [loss.pending_accesses for loss in losses]
        if self.effective is not None:
            counted = [count for count in accesses if count is not None]
            complete = len(counted) == len(accesses)
            self.effective = self.effective + sum(counted) / self._total_accesses if complete else None
        return pls
