"""Where a run stands in its data, in a form that a save keeps."""

from __future__ import annotations

from collections.abc import Iterable

import xxhash
from pydantic import BaseModel, ConfigDict

from trainer.data.split import Split

Range = tuple[int, int]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OpenPart(_Record):
    """A split of the stage that was begun: its place there, and the row ranges still to be trained on.

    ``seen``: somebody was given its rows before, so they are no first pass.
    """

    ordinal: int
    ranges: tuple[Range, ...]
    seen: bool


class Position(_Record):
    """Rows that are done: whole stages, and of the stage under way all but ``open`` and its last ``untouched`` splits.

    ``plan`` tells whether a queue is of the same splits. ``counts``: rows by outcome.
    """

    plan: str
    stages_done: int
    untouched: int
    open: tuple[OpenPart, ...]
    counts: dict[str, int]


def fingerprint(splits: Iterable[tuple[Split, int]]) -> str:
    """Of all splits with their epochs, in order."""
    digest = xxhash.xxh3_128()
    for split, epoch in splits:
        digest.update(f"{epoch}\0{split.path}\0{split.row_start}\0{split.row_end}\n".encode())
    return digest.hexdigest()
