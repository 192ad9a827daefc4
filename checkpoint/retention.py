"""Which saves are kept: a pure decision over what is visible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from checkpoint.manifest import Manifest


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What to keep; the unit is the *chain*, a full save and all that continues it.

    ``keep_last`` newest chains are kept whole (``None``: all, nothing is ever deleted), so that with 2 there is
    another one to fall back on when the newest full save is damaged. Of older ones, with ``keep_every_s``, the full
    save alone is kept when it is at least that much younger than the one kept before it. The newest save of one
    instant, which a full recovery would take, and what it needs are always kept.
    """

    keep_last: int | None = 2
    keep_every_s: float | None = None

    def __post_init__(self) -> None:
        if self.keep_last is not None and self.keep_last < 1:
            raise ValueError(f"keep_last must be at least 1, or null to keep all saves; got {self.keep_last}")
        if self.keep_every_s is not None and not 0 < self.keep_every_s < math.inf:
            raise ValueError(f"keep_every_s must be positive, or null; got {self.keep_every_s}")

    def kept(self, saves: Sequence[Manifest]) -> set[str]:
        """Ids to keep of ``saves`` (visible ones, oldest first); closed under "is continued by".

        Saves whose chain is broken count for nothing; they are kept as long as no kept chain is younger.
        """
        chains = chains_of(saves)
        roots = [save for save in saves if save.parent is None]
        whole = roots if self.keep_last is None else roots[-self.keep_last :]
        wanted = {save.save_id for save in whole}
        kept = {name for name, chain in chains.items() if chain and chain[0] in wanted}
        if self.keep_every_s is not None:
            last = None
            for root in roots:
                if last is None or root.created_unix_s >= last + self.keep_every_s:
                    kept.add(root.save_id)
                    last = root.created_unix_s
        exact = [save.save_id for save in saves if save.exact and chains[save.save_id]]
        if exact:
            kept.update(chains[exact[-1]])
        youngest = max((save.sequence for save in saves if save.save_id in kept), default=-1)
        kept.update(save.save_id for save in saves if not chains[save.save_id] and save.sequence > youngest)
        if self.keep_last is None:
            kept.update(save.save_id for save in saves)
        return kept


def chains_of(saves: Sequence[Manifest]) -> dict[str, tuple[str, ...]]:
    """Each save's chain, from its full save to itself; empty when part of it is missing. ``saves`` oldest first."""
    chains: dict[str, tuple[str, ...]] = {}
    for save in saves:
        before = () if save.parent is None else chains.get(save.parent, ())
        chains[save.save_id] = (*before, save.save_id) if before or save.parent is None else ()
    return chains
