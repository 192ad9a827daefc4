"""What a private Ray leaves on the disk: nothing, unless somebody wants to look at its logs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from services.config import RunConfig
from services.ray_session import ray_session


def _session() -> Path:
    """The directory a command's Ray had while it ran."""
    with ray_session(RunConfig()):
        import ray

        directory = Path(ray._private.worker._global_node.get_session_dir_path())
        assert (directory / "logs").is_dir()
    assert not ray.is_initialized()
    return directory


def test_the_session_directory_goes_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENUMBRA_DEBUG", raising=False)
    own = _session()
    assert own.name.startswith("session_")
    assert own.parent.is_dir() and not own.exists()


@pytest.mark.slow
def test_whoever_debugs_keeps_the_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENUMBRA_DEBUG", "1")
    kept = _session()
    assert any((kept / "logs").iterdir())
    shutil.rmtree(kept)
