"""Where the injector finds a run and leaves its traces; how far the run is by its own account."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple


class FaultFiles(NamedTuple):
    """Paths below ``RUN_DIR/faults``."""

    board: Path
    control: Path
    """Of the storage faults."""
    log: Path
    lock: Path


def fault_files(run_dir: str | Path) -> FaultFiles:
    """The files for faults of a run; roles open ``board``, ``faulty_url`` takes ``control``."""
    folder = Path(run_dir) / "faults"
    return FaultFiles(folder / "board", folder / "storage.json", folder / "log.jsonl", folder / "lock")


class Lines:
    """New whole lines of a growing JSON-lines file."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def new(self) -> list[dict[str, object]]:
        """Those since the last call; none while there is no file."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


class SampleCount:
    """Samples trained, from ``metrics.jsonl``."""

    def __init__(self, run_dir: Path) -> None:
        self._lines = Lines(run_dir / "metrics.jsonl")
        self.samples = 0

    def look(self) -> int:
        """The newest count."""
        for line in self._lines.new():
            found = line.get("at_samples")
            if isinstance(found, int):
                self.samples = max(self.samples, found)
        return self.samples
