"""Plain Python readings of the formats, written apart from the product, for comparison."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from trainer.data.block import RawBlock

MISSING = 2**32
GOOD_LINE = "\t".join(["1"] + ["7"] * 13 + ["68fd1e64"] * 26)


def parse_line(line: str) -> tuple[float, list[float], list[int]]:
    """(label, 13 dense, 26 categories) of a well-formed line, field by field."""
    fields = line.split("\t")
    assert len(fields) == 40
    dense = [math.log1p(max(int(field), 0)) if field else 0.0 for field in fields[1:14]]
    return float(fields[0]), dense, [int(field, 16) if field else MISSING for field in fields[14:]]


def check_blocks(blocks: Iterable[RawBlock], lines: list[str], rows: Iterable[int]) -> None:
    """The blocks hold exactly ``rows`` of ``lines`` in order, and cover them without gaps."""
    got = list(blocks)
    expected = [parse_line(lines[row]) for row in rows]
    labels = np.concatenate([block.labels for block in got])
    dense = np.concatenate([block.dense for block in got])
    categories = np.concatenate([block.categories for block in got], axis=1)
    assert labels.tolist() == [row[0] for row in expected]
    np.testing.assert_allclose(dense, np.array([row[1] for row in expected]).reshape(-1, 13), rtol=1e-6)
    assert categories.T.tolist() == [row[2] for row in expected]
    index = [i for b in got for i in (range(b.line_start, b.line_end) if b.row_index is None else b.row_index)]
    assert index == list(rows)
    for block in got:
        assert (block.dense.dtype, block.labels.dtype) == (np.float32, np.float32)
        assert block.categories.dtype == np.uint64 and block.categories.flags.c_contiguous
        assert block.rows + len(block.rejected) == block.line_end - block.line_start


def write_lines(path: Path, lines: list[str], end: str = "\n") -> Path:
    path.write_bytes("".join(line + end for line in lines).encode())
    return path
