"""A shard's rows from saves: the newest version of each row, or everybody's at one instant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checkpoint.catalog import SaveCatalog
from checkpoint.chain import choose
from checkpoint.piece_rows import PieceRows
from checkpoint.restore import RestoreReport, restore, restore_newest


@dataclass(frozen=True, slots=True)
class RestoreOrder:
    """Which saves to take.

    Attributes:
        url: where they are.
        run: whose they are.
        save_id: everybody's common save; ``None``: the newest version of each row there is (partial recovery).
    """

    url: str
    run: str
    save_id: str | None = None


def fill(order: RestoreOrder, rows: Sequence[PieceRows]) -> RestoreReport | None:
    """Fill the pieces; ``None``, and nothing done, when partial recovery finds no save at all.

    Raises:
        CheckpointError: the common save cannot be read, or no save can though there are some.
    """
    catalog = SaveCatalog(order.url, run=order.run)
    if order.save_id is not None:
        return restore(catalog, choose(catalog.list(), save_id=order.save_id).chain, rows)
    if not catalog.list() and not catalog.damaged():
        return None
    return restore_newest(catalog, rows)
