"""Lines of Criteo text to arrays: a decoder for well-formed lines, and a slow path that sets the others apart."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np

from trainer.data.block import F32, I64, U64, RejectedLine, shorten
from trainer.data.criteo import COLUMNS, DENSE, EXPECTED, MAX_DIGITS
from trainer.data.errors import DataError
from trainer.data.lines import Lines
from trainer.data.split import Labels
from trainer.data.swar import PAD_BYTES, Bytes, decode_hex, decode_int

_TAB: Final = 9
_NEWLINE: Final = 10
_RETURN: Final = 13
_FIRST_SPARSE: Final = 1 + len(DENSE)
_VALUES: Final = rb"(?:-?[0-9]{1,%d})?(?:\t(?:-?[0-9]{1,%d})?){12}(?:\t(?:[0-9a-fA-F]{8})?){26}\r?" % (
    MAX_DIGITS,
    MAX_DIGITS,
)
_GOOD_LINE: Final[dict[Labels, re.Pattern[bytes]]] = {
    "wanted": re.compile(rb"[01]\t" + _VALUES),
    "ignored": re.compile(rb"[^\t]*\t" + _VALUES),
    "absent": re.compile(_VALUES),
}


class TextFields(NamedTuple):
    """Where the 13 integers of n lines stand: n×13 starts and ends in ``buffer``."""

    buffer: Bytes
    starts: I64
    ends: I64


class CriteoRows(NamedTuple):
    """n decoded lines.

    Attributes:
        labels: n float32; zeros where the file has none, or they are ignored.
        counts: n×13, 0 where negative or missing (all that the dense transform needs).
        categories: 26×n, ``MISSING`` where empty.
        integers: the text of ``counts``; valid as long as the lines are.
    """

    labels: F32
    counts: U64
    categories: U64
    integers: TextFields


class CheckedLines(NamedTuple):
    """What is left of some lines: ``row_index`` (``None``: all of them) says which; the others are ``rejected``."""

    rows: CriteoRows
    row_index: I64 | None
    rejected: list[RejectedLine]


def decode_lines(lines: Lines, path: str, row: int, labels: Labels) -> CheckedLines:
    """Decodes the lines from ``row`` on of a file with 40 columns, or 39 where labels are ``absent``."""
    decoded = _decode(lines, labels)
    if decoded is not None:
        return CheckedLines(decoded, None, [])
    good, row_index, rejected = _sort_out(lines, path, row, labels)
    decoded = _decode(good, labels)
    if decoded is None or not rejected:
        raise DataError(path, f"rows {row + 1} to {row + lines.rows}: checked and decoded lines disagree (a bug)")
    return CheckedLines(decoded, np.array(row_index, dtype=np.int64), rejected)


def _decode(lines: Lines, labels: Labels) -> CriteoRows | None:
    """``None`` when any line is malformed."""
    buffer, start, end, count = lines
    width = len(COLUMNS) - (labels == "absent")
    text = buffer[start:end]
    # Tab and newline are the two highest bytes up to 10; a lower one is garbage and shows up in the tab count.
    edges = np.flatnonzero(text <= _NEWLINE)
    if edges.size != count * width or np.count_nonzero(text == _TAB) != count * (width - 1):
        return None
    edges += start
    fields = edges.reshape(count, width)
    line_ends = fields[:, -1]
    if not (buffer[line_ends] == _NEWLINE).all():
        return None
    found = np.zeros(count, dtype=np.float32)
    if labels == "wanted":
        label_ends = fields[:, 0]
        digits = buffer[label_ends - 1] - np.uint8(ord("0"))
        one_character = label_ends[1:] - line_ends[:-1] == 2
        if (digits > 1).any() or not one_character.all() or (count and label_ends[0] - start != 1):
            return None
        found = digits.astype(np.float32)
    elif labels == "absent":  # the end of the line before stands for the end of the label
        fields = np.column_stack((np.concatenate(([start - 1], line_ends[:-1]))[:count], fields))
    starts, ends = fields[:, : _FIRST_SPARSE - 1] + 1, fields[:, 1:_FIRST_SPARSE]
    counts, bad = decode_int(buffer, starts, ends)
    if bad is not None:
        return None
    field_starts = np.add(fields[:, _FIRST_SPARSE - 1 : -1].T, 1, order="C")
    field_ends = fields[:, _FIRST_SPARSE:].T.copy()
    field_ends[-1] -= buffer[line_ends - 1] == _RETURN
    categories, bad = decode_hex(buffer, field_starts, field_ends)
    if bad is not None:
        return None
    return CriteoRows(found, counts, categories, TextFields(buffer, starts, ends))


def _sort_out(lines: Lines, path: str, row: int, labels: Labels) -> tuple[Lines, list[int], list[RejectedLine]]:
    """The slow path: separates malformed lines; the others are laid out again for the one decoder there is."""
    good: list[bytes] = []
    row_index: list[int] = []
    rejected: list[RejectedLine] = []
    for number, line in enumerate(lines.buffer[lines.start : lines.end].tobytes().split(b"\n")[:-1], start=row):
        if _GOOD_LINE[labels].fullmatch(line):
            good.append(line)
            row_index.append(number)
        else:
            rejected.append(RejectedLine(path, number + 1, *_diagnose(line, labels)))
    text = b"".join(line + b"\n" for line in good)
    buffer: Bytes = np.zeros(len(text) + 2 * PAD_BYTES, dtype=np.uint8)
    buffer[PAD_BYTES : PAD_BYTES + len(text)] = np.frombuffer(text, dtype=np.uint8)
    return Lines(buffer, PAD_BYTES, PAD_BYTES + len(text), len(good)), row_index, rejected


def _diagnose(line: bytes, labels: Labels) -> tuple[str, str, str]:
    """(column, found, expected) of a line that is not good."""
    columns = COLUMNS[1:] if labels == "absent" else COLUMNS
    fields = line.removesuffix(b"\r").split(b"\t")
    if len(fields) != len(columns):
        return "line", f"{len(fields)} columns" if line.strip() else "an empty line", _wanted(len(fields), labels)
    for at, (column, field) in enumerate(zip(columns, fields, strict=True)):
        others = [b""] * len(columns)
        if labels != "absent":
            others[0] = b"0"
        others[at] = field
        if not _GOOD_LINE[labels].fullmatch(b"\t".join(others)):
            return column, _show(field), EXPECTED[column] + _header_hint(fields)
    raise AssertionError("every malformed line has a malformed column")


def _wanted(found: int, labels: Labels) -> str:
    if labels == "absent":
        wanted = f"{len(COLUMNS) - 1} tab-separated columns without a label (I1…I13, C1…C26)"
        if found == len(COLUMNS):
            wanted += "; 40 columns look like a labeled file: for `penumbra prepare` leave out --unlabeled"
        return wanted
    wanted = f"{len(COLUMNS)} tab-separated columns (label, I1…I13, C1…C26)"
    if found == len(COLUMNS) - 1 and labels == "wanted":
        wanted += (
            "; 39 columns look like an unlabeled file (Criteo's test.txt), which cannot be trained on; "
            "`penumbra train --unlabeled FILE` (data.predict) predicts it"
        )
    return wanted


def _show(field: bytes) -> str:
    try:
        return shorten(field.decode("utf-8"))
    except UnicodeDecodeError:
        return f"bytes that are not UTF-8: {shorten(field.decode('latin-1'))}"


def _header_hint(fields: list[bytes]) -> str:
    """A line whose fields are all words where numbers belong names columns."""
    if all(re.fullmatch(rb"[A-Za-z_][\w .-]*", field) for field in fields[: _FIRST_SPARSE - 1]):
        return "; this looks like a header: Criteo text has none, remove the line or use data.format=tsv"
    return ""
