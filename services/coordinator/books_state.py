"""Books as a save, or the state store, keeps them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from services.coordinator.position import Position
from trainer.data.block import RejectedLine


class AccountsState(BaseModel):
    """Quality so far; ``first_pass``: summed loss, samples, positives."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    first_pass: tuple[float, int, int]
    evaluations: tuple[tuple[int, dict[str, Any]], ...]
    bad_batches: tuple[str, ...]
    bad_lines: tuple[RejectedLine, ...]


class BooksState(BaseModel):
    """Which rows are committed, and what they came to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    position: Position
    accounts: AccountsState
