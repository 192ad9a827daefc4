from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.state.store import StateStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    opened = StateStore.open(None, "r", tmp_path, timeout_s=0.5)
    yield opened
    opened.close()
