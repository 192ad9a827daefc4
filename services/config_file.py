"""From a YAML file and dotted overrides to a ``RunConfig``; errors say what, where, and what would be right."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from services._config_schema import Key, Schema, describe, wants
from services._config_tree import Node, merge, parse, scalars
from services.config import RunConfig

_COMMAND_LINE = "command line"


class ConfigError(ValueError):
    """The configuration cannot be used. ``problems`` has one line for each thing that is wrong with it."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = "1 problem in the configuration:" if count == 1 else f"{count} problems in the configuration:"
        super().__init__("\n".join([head, *(f"  - {problem}" for problem in self.problems)]))


def load_config(path: str | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Reads ``path`` (``None``: only defaults) and lays ``key.path=value`` overrides on it; values are YAML.

    Raises:
        ConfigError: with every problem at once: unknown keys and their nearest known key, values with the path, what
            was found, what is allowed and the line; keys given twice; settings that contradict each other.
    """
    schema = Schema(RunConfig)
    problems: list[str] = []
    root = _read(path, problems)
    for override in overrides:
        root = merge(root, _override(override, problems))
    known = _Checker(schema, problems).check(root, schema.keys[""], "")
    config = _validate(known, root, schema, problems)
    if problems or config is None:
        raise ConfigError(problems)
    return config


def dump_config(config: RunConfig) -> str:
    """The whole configuration as YAML, defaults included; ``load_config`` reads it back equal."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Lists on one line; text that YAML 1.1 or 1.2 would take for a number is quoted, so that any reader sees text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_list(self, data: Any) -> yaml.SequenceNode:
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    def represent_text(self, data: str) -> yaml.ScalarNode:
        # YAML reads Unicode's own line breaks as line ends, and folds them, unless they are escaped.
        style = '"' if re.search("[\x85\u2028\u2029]", data) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(list, _Dumper.represent_list)
_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9_.]+[eE][-+]?[0-9]+"), list("-+.0123456789")
)


def _read(path: str | None, problems: list[str]) -> Node:
    if path is None:
        return Node({}, "defaults")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror or error}")
        return Node({}, path)
    except UnicodeDecodeError as error:
        problems.append(f"{path}: is not UTF-8 text (byte {error.start})")
        return Node({}, path)
    parsed = parse(text, path)
    problems.extend(parsed.problems)
    return parsed.root


def _override(override: str, problems: list[str]) -> Node:
    """``a.b=c`` as the tree ``{a: {b: c}}``."""
    path, equals, text = override.partition("=")
    names = path.strip().split(".")
    if not equals or not all(names):
        problems.append(f"{_COMMAND_LINE}: {override!r} is not of the form key.path=value")
        return Node({}, _COMMAND_LINE)
    parsed = parse(text, f"{_COMMAND_LINE}: {path}", lines=False)
    problems.extend(parsed.problems)
    if parsed.problems:
        return Node({}, _COMMAND_LINE)
    node = _placed(parsed.root, _COMMAND_LINE)
    for name in reversed(names):
        node = Node({name: node}, _COMMAND_LINE)
    return node


def _placed(node: Node, place: str) -> Node:
    if isinstance(node.value, dict):
        return Node({key: _placed(child, place) for key, child in node.value.items()}, place)
    return Node(node.value, place, node.text)


class _Checker:
    """Keeps the known part of a tree, as plain values of the right kind; reports the rest."""

    def __init__(self, schema: Schema, problems: list[str]) -> None:
        self._schema = schema
        self._problems = problems

    def check(self, node: Node, key: Key, path: str) -> dict[str, object]:
        if node.value is None:  # a section with everything in it commented out
            return {}
        if not isinstance(node.value, dict):
            names = ", ".join(self._schema.below(key))
            found = _show(node.plain())
            self._problems.append(
                f"{node.place}: {path or 'the document'} is a section, found {found}; its keys are {names}"
            )
            return {}
        kept: dict[str, object] = {}
        for name, child in node.value.items():
            below = f"{path}.{name}" if path else name
            known = self._schema.child(key, name)
            if known is None:
                self._unknown(child, key, below)
            elif known.model or known.named:
                kept[name] = self.check(child, known, below)
            else:
                kept[name] = _fit(child, known.annotation)
        return kept

    def _unknown(self, node: Node, section: Key, path: str) -> None:
        below = list(scalars(node, path))
        if len(below) == 1:  # `training.batch_size=8` is reported as typed, not as `training`
            path, node = below[0]
        nearest = self._schema.nearest(path)
        if nearest:
            remedy = f"did you mean {' or '.join(nearest)}?"
        else:
            remedy = f"keys of {section.path or 'the document'}: {', '.join(self._schema.below(section))}"
        self._problems.append(f"{node.place}: unknown key {path}; {remedy}")


def _fit(node: Node, annotation: Any) -> object:
    """The plain value, with what YAML's types lose put right: ``name: 2024`` is text, ``rows: 1e6`` a whole number."""
    value = node.value
    if isinstance(value, list):
        return [_fit(item, annotation) for item in value]
    if isinstance(value, dict) or value is None:
        return node.plain()
    if wants(annotation, str):
        return node.text
    if isinstance(value, float) and wants(annotation, int) and value.is_integer():
        return int(value)
    return value


def _validate(known: dict[str, object], root: Node, schema: Schema, problems: list[str]) -> RunConfig | None:
    try:
        # Strict JSON: a list may be a tuple and 1 a float, but true is not 1 and "8" is not 8.
        return RunConfig.model_validate_json(json.dumps(known), strict=True)
    except ValidationError as error:
        unknown_before = bool(problems)
        seen: set[tuple[str, ...]] = set()
        for detail in error.errors(include_url=False):
            if detail["type"] == "value_error":
                names, key = _locate(detail["loc"], schema)
                if names and key.model is None:  # a value that is wrong by itself
                    problems.append(f"{_find(root, names)[0]}: {detail['ctx']['error']}")
                # Settings against each other: with a misspelt key about, they may only be its consequence.
                elif not unknown_before:
                    problems.append(_together(str(detail["ctx"]["error"]), root, schema))
                continue
            names, key = _locate(detail["loc"], schema)
            if names not in seen:
                seen.add(names)
                place, found = _find(root, names)
                problems.append(f"{place}: {'.'.join(names)} must be {describe(key.annotation)}; found {_show(found)}")
        return None


def _together(message: str, root: Node, schema: Schema) -> str:
    """A message about several settings, followed by where each of them was written."""
    mentioned = [path for path in re.findall(r"[a-z_]+(?:\.[a-z_]+)+", message) if path in schema.keys]
    places = "; ".join(f"{path}: {_find(root, path.split('.'))[0]}" for path in dict.fromkeys(mentioned))
    return f"{message} ({places})" if places else message


def _locate(loc: tuple[int | str, ...], schema: Schema) -> tuple[tuple[str, ...], Key]:
    """The path of a pydantic location; what lies below a value (list items, union branches) is dropped."""
    key = schema.keys[""]
    names: list[str] = []
    for part in loc:
        child = schema.child(key, str(part))
        if child is None:
            break
        key = child
        names.append(str(part))
    return tuple(names), key


def _find(root: Node, names: Sequence[str]) -> tuple[str, object]:
    """Where the setting ``names`` was written and the value there."""
    node = root
    for name in names:
        if not isinstance(node.value, dict) or name not in node.value:
            return "default", None
        node = node.value[name]
    return node.place, node.plain()


def _show(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"
