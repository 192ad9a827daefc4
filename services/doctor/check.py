"""One finding of the doctor."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Level = Literal["ok", "warn", "fail"]


class Check(BaseModel):
    """``warn``: training runs, with a drawback. ``fail``: it cannot. Both come with a remedy."""

    model_config = ConfigDict(frozen=True)

    name: str
    level: Level
    found: str
    remedy: str | None = None


def ok(name: str, found: str) -> Check:
    """Nothing to do."""
    return Check(name=name, level="ok", found=found)


def warn(name: str, found: str, remedy: str) -> Check:
    """Training runs, with a drawback."""
    return Check(name=name, level="warn", found=found, remedy=remedy)


def fail(name: str, found: str, remedy: str) -> Check:
    """Training cannot run."""
    return Check(name=name, level="fail", found=found, remedy=remedy)
