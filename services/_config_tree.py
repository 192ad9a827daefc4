"""YAML as a tree that remembers where every value was written, so that an error can name the line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

Scalar = str | int | float | bool | None

_INT = re.compile(r"[-+]?[0-9][0-9_]{0,40}")
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?")
_NULL = ("", "~", "null", "Null", "NULL")
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


@dataclass(slots=True)
class Node:
    """A value with the place it was written at.

    Attributes:
        value: a scalar, a list of nodes (a list) or a dict of nodes (a section).
        text: what was typed, for scalars.
        place: ``file.yaml line 12`` or ``command line``.
    """

    value: Scalar | list[Node] | dict[str, Node]
    place: str
    text: str = ""

    def plain(self) -> object:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


@dataclass(slots=True)
class Parsed:
    """A tree and what was wrong with its text."""

    root: Node
    problems: list[str] = field(default_factory=list)


class _Loader(yaml.SafeLoader):
    """Composes with no implicit types: they are decided here, by the YAML 1.2 core schema.

    PyYAML's YAML 1.1 reads ``no`` as false, ``1e-3`` as text and ``010`` as 8.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML's own attribute


def parse(text: str, source: str, *, lines: bool = True) -> Parsed:
    """Reads one YAML document; duplicate keys, foreign tags and cycles are problems, as is broken syntax.

    Args:
        text: the document.
        source: the place it came from, a path or ``command line``.
        lines: name the line behind ``source``.
    """
    parsed = Parsed(Node({}, source))
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source} line {mark.line + 1}" if lines and mark else source
        why = " ".join(part for part in (error.context, error.problem) if part)
        parsed.problems.append(f"{place}: not valid YAML: {why}")
        return parsed
    except yaml.YAMLError as error:
        parsed.problems.append(f"{source}: not valid YAML: {error}")
        return parsed
    if node is None:
        parsed.root = Node(None, source)
    else:
        parsed.root = _Builder(source, lines, parsed.problems).build(node, "", ())
    return parsed


def scalars(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """Every scalar or list below ``node`` with its dotted path."""
    if isinstance(node.value, dict) and node.value:
        for key, child in node.value.items():
            yield from scalars(child, f"{path}.{key}" if path else key)
    else:
        yield path, node


def merge(base: Node, over: Node) -> Node:
    """``over`` laid on ``base``: sections are merged key by key, anything else is replaced."""
    if not (isinstance(base.value, dict) and isinstance(over.value, dict)):
        return over
    merged = dict(base.value)
    for key, child in over.value.items():
        merged[key] = merge(merged[key], child) if key in merged else child
    return Node(merged, base.place)


class _Builder:
    """Turns PyYAML's nodes into ours."""

    def __init__(self, source: str, lines: bool, problems: list[str]) -> None:
        self._source = source
        self._lines = lines
        self._problems = problems

    def build(self, node: yaml.Node, path: str, above: tuple[yaml.Node, ...]) -> Node:
        place = self._place(node)
        if any(node is outer for outer in above):
            self._problems.append(f"{place}: {path or 'the document'} contains itself")
            return Node(None, place)
        if isinstance(node, yaml.MappingNode):
            return Node(self._section(node, path, (*above, node)), place)
        if isinstance(node, yaml.SequenceNode):
            below = (*above, node)
            return Node([self.build(item, f"{path}[{i}]", below) for i, item in enumerate(node.value)], place)
        return Node(self._scalar(node, path), place, node.value)

    def _section(self, node: yaml.MappingNode, path: str, above: tuple[yaml.Node, ...]) -> dict[str, Node]:
        section: dict[str, Node] = {}
        for key_node, value_node in node.value:
            place = self._place(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self._problems.append(f"{place}: a key of {path or 'the document'} is not a plain name")
                continue
            key = key_node.value
            below = f"{path}.{key}" if path else key
            if key in section:
                self._problems.append(f"{place}: {below} is given twice, first at {section[key].place}")
                continue
            section[key] = self.build(value_node, below, above)
            section[key].place = place
        return section

    def _scalar(self, node: yaml.Node, path: str) -> Scalar:
        text: str = node.value
        if node.tag != "tag:yaml.org,2002:str":
            self._problems.append(f"{self._place(node)}: {path}: the tag {node.tag} is not allowed here")
            return None
        if isinstance(node, yaml.ScalarNode) and node.style is not None:  # quoted or a block: text, whatever it says
            return text
        if text in _NULL:
            return None
        if text in _BOOL:
            return _BOOL[text]
        if _INT.fullmatch(text):
            return int(text.replace("_", ""))
        if _FLOAT.fullmatch(text):
            value = float(text.replace("_", ""))
            return value if math.isfinite(value) else text
        return text

    def _place(self, node: yaml.Node) -> str:
        return f"{self._source} line {node.start_mark.line + 1}" if self._lines else self._source
