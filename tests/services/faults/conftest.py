from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.faults.board_file import create_board
from services.faults.run_files import fault_files
from tests.services.faults.role_process import Roles


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run's directory with a board."""
    folder = tmp_path / "run"
    roles = {"shard": 2, "trainer": 1, "state_store": 1}
    create_board(fault_files(folder).board, roles)  # type: ignore[arg-type]
    return folder


@pytest.fixture
def roles(run_dir: Path) -> Iterator[Roles]:
    found = Roles(fault_files(run_dir).board)
    yield found
    found.end()
