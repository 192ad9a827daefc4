"""Reading a FaultPlan from YAML; errors say file, line, key and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from services._config_tree import Node, parse
from services.faults.plan import FaultPlan


class PlanError(ValueError):
    """The plan cannot be used; one line for each thing that is wrong with it."""


def load_plan(path: str | Path) -> FaultPlan:
    """Read a plan from a YAML (or JSON) file.

    Raises:
        PlanError: it cannot be read, or is no plan.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot be read: {error}") from error
    return parse_plan(text, str(path))


def parse_plan(text: str, source: str) -> FaultPlan:
    """Like ``load_plan``, from text; ``source`` is its name in messages."""
    parsed = parse(text, source)
    if parsed.problems:
        raise PlanError("\n".join(parsed.problems))
    try:
        return FaultPlan.model_validate(parsed.root.plain() or {})
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise PlanError("\n".join(_line(parsed.root, detail) for detail in details)) from error


def _line(root: Node, detail: Any) -> str:
    place, path, rest = _locate(root, detail["loc"])
    if detail["type"] == "extra_forbidden":
        near = difflib.get_close_matches(path.rpartition(".")[2], sorted(set(_keys(FaultPlan))), n=1)
        return f"{place}: unknown key {path}" + (f"; did you mean {near[0]}?" if near else "")
    if detail["type"] == "missing":
        return f"{place}: {path + '.' if path else ''}{rest} is missing"
    found = "" if isinstance(detail["input"], dict | list) else f"; found {detail['input']!r}"
    message = detail["msg"].removeprefix("Value error, ")
    return f"{place}: {path or 'the plan'}: {message[0].lower()}{message[1:]}{found}"


def _locate(root: Node, loc: tuple[int | str, ...]) -> tuple[str, str, str]:
    """Where it was written, its path, and the last part of ``loc``; names of union branches are no keys.

    The branches of ``when`` are named like the key that tells them: with a key of the same section behind it, it is a
    branch.
    """
    node, path = root, ""
    for position, part in enumerate(loc):
        keys = node.value if isinstance(node.value, dict) else {}
        is_key = part in keys and (isinstance(keys[str(part)].value, dict) or not keys.keys() & loc[position + 1 :])
        if is_key:
            node = keys[str(part)]
            path += f".{part}" if path else str(part)
        elif isinstance(node.value, list) and isinstance(part, int):
            node = node.value[part]
            path += f"[{part}]"
    return node.place, path, str(loc[-1]) if loc else ""


def _keys(annotation: Any) -> Iterator[str]:
    """Every key that a plan may have, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield name
            yield from _keys(field.annotation)
    for part in get_args(annotation):
        yield from _keys(part)
