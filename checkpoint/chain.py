"""Chain: the saves that together hold every row, from a full save to the one asked for; and which chain to take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from checkpoint.errors import SaveIncomplete, SaveNotFound
from checkpoint.manifest import Manifest, TableSpec


@dataclass(frozen=True, slots=True)
class Skipped:
    """A save that was younger than the one taken, and why it was not taken."""

    save_id: str
    reason: str

    def __str__(self) -> str:
        return f"{self.save_id}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Chain:
    """A full save and those that continue it, oldest first."""

    saves: tuple[Manifest, ...]

    @property
    def newest(self) -> Manifest:
        """The save asked for: it has the state that is not rows, and says at how many samples everything was."""
        return self.saves[-1]

    @property
    def save_ids(self) -> tuple[str, ...]:
        """Oldest first."""
        return tuple(save.save_id for save in self.saves)

    @property
    def tables(self) -> Mapping[str, TableSpec]:
        """Equal in every save."""
        return self.newest.tables

    @property
    def exact(self) -> bool:
        """Whether it is the state of one instant."""
        return self.newest.exact


@dataclass(frozen=True, slots=True)
class Choice:
    """The chain taken, and the younger saves that were passed over, youngest first."""

    chain: Chain
    skipped: tuple[Skipped, ...] = ()


def choose(
    manifests: Iterable[Manifest],
    *,
    save_id: str | None = None,
    exact: bool = False,
    unusable: Mapping[str, str] | None = None,
    stateless: Mapping[str, str] | None = None,
) -> Choice:
    """The chain of ``save_id``, or of the youngest save that has a whole one.

    Args:
        manifests: the visible saves of the run, in any order.
        save_id: take this save or none.
        exact: take only a chain that is one instant's state: what a full recovery and a resume need.
        unusable: saves known to be damaged, with what is wrong; no chain over them is whole.
        stateless: saves of which only state that is not rows is damaged, with what is wrong; no chain may end in one.

    Raises:
        SaveNotFound: there is no such save, or none that will do; says why each was passed over.
        SaveIncomplete: ``save_id`` was asked for and its chain is broken.
    """
    known = {manifest.save_id: manifest for manifest in manifests}
    damaged, last = unusable or {}, {**(stateless or {}), **(unusable or {})}
    if save_id is not None:
        return _asked_for(known, save_id, exact, damaged, last)
    skipped: list[Skipped] = []
    for manifest in sorted(known.values(), key=lambda save: save.sequence, reverse=True):
        found = _chain(known, manifest, exact, damaged, last)
        if isinstance(found, Chain):
            return Choice(found, tuple(skipped))
        skipped.append(Skipped(manifest.save_id, found))
    if not skipped:
        raise SaveNotFound(
            "no complete save: nothing has been saved yet, or this is not the run's checkpoint directory"
        )
    raise SaveNotFound(f"none of {len(skipped)} saves can be used: " + "; ".join(map(str, skipped)))


def _asked_for(
    known: Mapping[str, Manifest], save_id: str, exact: bool, damaged: Mapping[str, str], last: Mapping[str, str]
) -> Choice:
    if save_id not in known:
        raise SaveNotFound(f"no complete save {save_id!r}; there are: {', '.join(sorted(known)) or 'none'}")
    found = _chain(known, known[save_id], exact, damaged, last)
    if isinstance(found, Chain):
        return Choice(found)
    raise SaveIncomplete(
        f"save {save_id} cannot be used: {found}. Name an older save, or none to take the youngest whole one"
    )


def _chain(
    known: Mapping[str, Manifest],
    newest: Manifest,
    exact: bool,
    damaged: Mapping[str, str],
    last: Mapping[str, str],
) -> Chain | str:
    """The chain that ends in ``newest``, or what is wrong with it; ``last``: what rules a save out as its end."""
    if exact and not newest.consistent:
        return "its chunks were cut at different instants, and a consistent save is needed"
    if exact and newest.kind == "priority":
        return "a priority save leaves changed rows out, and the state of one instant is needed"
    if newest.save_id in last:
        return last[newest.save_id]
    saves = [newest]
    while True:
        save = saves[-1]
        if save.save_id in damaged:
            return f"it continues {save.save_id}, and {damaged[save.save_id]}"
        if save.tables != newest.tables:
            return f"it continues {save.save_id}, which has other tables: {_difference(save, newest)}"
        if save.parent is None:
            return Chain(tuple(reversed(saves)))
        parent = known.get(save.parent)
        if parent is None:
            return f"{save.save_id} continues {save.parent}, which is missing or not visible"
        if parent.sequence >= save.sequence or parent.timeline > save.timeline:
            return f"{save.save_id} names {save.parent}, which is not older, as what it continues"
        saves.append(parent)


def _difference(one: Manifest, other: Manifest) -> str:
    """The first table that differs, as both saves have it."""
    names = sorted(one.tables.keys() | other.tables.keys())
    table = next(name for name in names if one.tables.get(name) != other.tables.get(name))
    return f"{table!r} is {_said(one.tables.get(table))} there and {_said(other.tables.get(table))} here"


def _said(spec: TableSpec | None) -> str:
    return "absent" if spec is None else f"{spec.rows} rows × {spec.dim} {spec.dtype} under {spec.optimizer}"
