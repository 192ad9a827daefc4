"""The code in docs/checkpoints.md runs as it stands there, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text(encoding="utf-8")


def test_saving_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    exec(_code("Saving"), {})
    assert f"```\n{capsys.readouterr().out}```" in PAGE


def test_saving_restoring_and_reading_without_penumbra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first: dict[str, Any] = {}
    exec(_code("Restoring"), first)
    assert torch.equal(first["half"].weights, first["live"].weights[500:])
    assert torch.equal(first["half"].states["sum"], first["live"].states["sum"][500:])
    assert f"```\n{capsys.readouterr().out}```" in PAGE
    by_hand = _code("The format")
    assert "checkpoint" not in by_hand.replace("checkpoints", "")
    second: dict[str, Any] = {}
    exec(by_hand, second)
    assert torch.equal(second["table"], first["live"].weights)


def _code(section: str) -> str:
    """The Python of a section."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.split(f"## {section}\n")[1].split("\n## ")[0], re.DOTALL)
    return str(code)
