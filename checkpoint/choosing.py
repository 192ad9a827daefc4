"""Which saves a restore takes: those of which every file is there, and why younger ones are passed over."""

from __future__ import annotations

from collections.abc import Mapping

from checkpoint.catalog import SaveCatalog
from checkpoint.chain import Choice, Skipped, choose
from checkpoint.errors import CheckpointError, SaveNotFound
from checkpoint.opened import missing_rows, missing_state
from checkpoint.ticket import parse_save_id


def choose_complete(
    store: SaveCatalog,
    *,
    exact: bool = False,
    damaged: Mapping[str, str] | None = None,
    stateless: Mapping[str, str] | None = None,
) -> Choice:
    """The youngest chain of which every file is there; contents are not read.

    Args:
        store: of the run.
        exact: take only the state of one instant.
        damaged: saves known to be unusable, with what is wrong.
        stateless: saves known to lack state that is not rows, with what is wrong; they can only be continued.

    Raises:
        SaveNotFound: there is none; says why each was passed over.
    """
    manifests = store.list()
    unusable, last = dict(damaged or {}), dict(stateless or {})
    while True:
        try:
            choice = choose(manifests, exact=exact, unusable=unusable, stateless=last)
        except SaveNotFound as error:
            unreadable = [str(skipped) for skipped in _unreadable(store)]
            if not unreadable:
                raise
            raise SaveNotFound("; ".join([str(error) if manifests else "no save can be used", *unreadable])) from error
        newest = choice.chain.newest
        faults = {
            save.save_id: fault for save in choice.chain.saves if (fault := missing_rows(store, save)) is not None
        }
        fault = missing_state(store, newest)
        if fault is not None:
            last[newest.save_id] = fault
        if not faults and fault is None:
            return Choice(choice.chain, (*_unreadable(store, newest.sequence), *choice.skipped))
        unusable |= faults


def _unreadable(store: SaveCatalog, sequence: int = 0) -> list[Skipped]:
    """Saves of that sequence and later ones that have no manifest, or a damaged one; youngest first."""
    skipped = []
    for save_id in sorted([*store.incomplete(), *store.damaged()], reverse=True):
        parsed = parse_save_id(save_id)
        if parsed is None or parsed[1] < sequence:
            continue
        try:
            store.read_manifest(save_id)
        except CheckpointError as error:
            skipped.append(Skipped(save_id, str(error)))
    return skipped
