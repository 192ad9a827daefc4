"""What the settings models allow: every known key, its values in words, and the nearest key to a wrong one."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

NAME = "<name>"
"""Stands for the free key in ``data.features.<name>.rows``."""

_NEAR = 0.6


@dataclass(frozen=True, slots=True)
class Key:
    """One known key.

    Attributes:
        path: dotted, with ``<name>`` where any name may stand.
        annotation: the type, ``Annotated`` where it has bounds.
        model: the section's model, ``None`` for a value.
        named: a section of freely named sections, such as ``embedding.tables``.
    """

    path: str
    annotation: Any
    model: type[BaseModel] | None = None
    named: bool = False


class Schema:
    """The keys of a settings model, sections included."""

    def __init__(self, model: type[BaseModel]) -> None:
        root = Key("", model, model=model)
        self.keys: dict[str, Key] = {"": root, **{key.path: key for key in _walk(model, "")}}

    def below(self, key: Key) -> list[str]:
        """Names that may stand directly in a section."""
        if key.named:
            return [NAME]
        return list(key.model.model_fields) if key.model else []

    def child(self, key: Key, name: str) -> Key | None:
        """The key ``name`` inside the section ``key``."""
        return self.keys.get(_join(key.path, NAME if key.named else name))

    def nearest(self, path: str) -> list[str]:
        """Known keys that ``path`` may have meant, from the whole tree, best first and only the best.

        The last name decides (with initials, so that ``lr`` finds ``learning_rate``), the section breaks ties.
        """
        section, _, name = path.rpartition(".")
        scored = []
        for known in self.keys:
            known_section, _, known_name = known.rpartition(".")
            if not known or known_name == NAME:
                continue
            likeness = _likeness(name, known_name)
            if likeness >= _NEAR:
                scored.append((likeness + 0.2 * _likeness(section, known_section), known))
        best = max((score for score, _ in scored), default=0.0)
        return sorted(known for score, known in scored if score > best - 0.01)[:3]


def describe(annotation: Any) -> str:
    """What a value of this type may be, in words: ``a whole number, at least 1 and at most 64``."""
    base, bounds = _unwrap(annotation)
    origin = get_origin(base)
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(base))
    if origin in (Union, types.UnionType):
        return " or ".join(describe(part) for part in get_args(base))
    if origin is tuple:
        return f"a list, each item {describe(get_args(base)[0])}"
    return ", ".join(filter(None, (_KINDS.get(base, "a value"), bounds)))


def wants(annotation: Any, kind: type) -> bool:
    """Whether ``kind`` is among the scalar types that ``annotation`` accepts, and no other number or text is."""
    scalars = set(_scalar_types(annotation))
    return kind in scalars and not (scalars - {kind, type(None)})


_KINDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    types.NoneType: "null",
}


def _walk(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, info in model.model_fields.items():
        path = _join(prefix, name)
        annotation = _annotation(info)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield Key(path, annotation, model=annotation)
            yield from _walk(annotation, path)
        elif get_origin(annotation) is dict:
            item = get_args(annotation)[1]
            yield Key(path, annotation, named=True)
            yield Key(_join(path, NAME), item, model=item)
            yield from _walk(item, _join(path, NAME))
        else:
            yield Key(path, annotation)


def _annotation(info: FieldInfo) -> Any:
    """The annotation with the bounds that pydantic moved into ``metadata`` put back."""
    annotation: Any = info.annotation
    return Annotated[(annotation, *info.metadata)] if info.metadata else annotation


def _unwrap(annotation: Any) -> tuple[Any, str]:
    if get_origin(annotation) is not Annotated:
        return annotation, ""
    base, *metadata = get_args(annotation)
    flat = [item for info in metadata for item in (info.metadata if isinstance(info, FieldInfo) else [info])]
    return base, " and ".join(filter(None, map(_bound, flat)))


def _bound(constraint: Any) -> str:
    match constraint:
        case annotated_types.Ge(ge=low):
            return f"at least {_plain(low)}"
        case annotated_types.Gt(gt=low):
            return f"more than {_plain(low)}"
        case annotated_types.Le(le=high):
            return f"at most {_plain(high)}"
        case annotated_types.Lt(lt=high):
            return f"less than {_plain(high)}"
        case annotated_types.MultipleOf(multiple_of=step):
            return f"a multiple of {_plain(step)}"
    pattern = getattr(constraint, "pattern", None)
    return f"matching {pattern}" if pattern else ""


def _plain(limit: Any) -> Any:
    """0 for 0.0: ``typing`` interns equal annotations, so which of the two is met depends on the order of imports."""
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _scalar_types(annotation: Any) -> Iterator[type]:
    base, _ = _unwrap(annotation)
    if get_origin(base) is Literal:
        yield from {type(choice) for choice in get_args(base)}
    elif get_args(base):
        for part in get_args(base):
            if part is not Ellipsis:
                yield from _scalar_types(part)
    else:
        yield base


def _likeness(one: str, other: str) -> float:
    plain_one, plain_other = (re.sub(r"[-_ .]", "", text.lower()) for text in (one, other))
    if plain_one == plain_other:
        return 1.0
    initials = "".join(part[:1] for part in other.split("_"))
    if len(initials) > 1 and plain_one == initials:
        return 0.9
    return difflib.SequenceMatcher(None, plain_one, plain_other).ratio()


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
