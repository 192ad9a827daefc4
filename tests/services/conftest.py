"""What tests of whole runs share: the data of a module, and the look at what a run must not leave behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.run_tools import assert_nothing_left, click_log, shared_files


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No process, no memory and no shared file of the test's runs is there when it has ended."""
    before = shared_files()
    yield
    assert_nothing_left(os.getpid(), before)


@pytest.fixture(scope="module")
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``ROWS`` clicks of the module that asks."""
    return click_log(tmp_path_factory.mktemp("data") / "clicks.tsv", request.module.ROWS)
