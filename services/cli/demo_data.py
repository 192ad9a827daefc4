"""The demo's click log: written once, written again when the parameters change."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.data.synth import SynthFormat, synthesize

_REPORT = "synth.json"
_MARKER = ".penumbra-demo.json"
"""What the demo leaves in a directory that it made, with the parameters; only such a directory is ever replaced."""


@dataclass(frozen=True, slots=True)
class DemoData:
    """What decides the rows."""

    rows: int
    seed: int
    max_table_rows: int
    format: SynthFormat

    def ensure(self, folder: Path) -> float | None:
        """Makes ``folder`` hold these rows and returns the Bayes AUC of the last tenth.

        The rows are written beside ``folder`` and renamed, so that an interrupted demo leaves no half data set.

        Raises:
            ValueError: ``folder`` is not the demo's, or holds files that the demo did not write; nothing is touched.
        """
        folder = folder.resolve()  # a link stays, what it points to is replaced
        if _former(folder) != asdict(self):
            self._write(folder)
        auc = json.loads((folder / _REPORT).read_text())["last_tenth"]["bayes_auc"]
        return None if auc is None else float(auc)

    def _write(self, folder: Path) -> None:
        if folder.exists():
            _refuse_strangers(folder)
        fresh, old = (folder.with_name(f".{folder.name}-{os.getpid()}{suffix}") for suffix in ("", "-old"))
        try:
            synthesize(fresh, rows=self.rows, seed=self.seed, max_table_rows=self.max_table_rows, format=self.format)
            (fresh / _MARKER).write_text(json.dumps(asdict(self)) + "\n")
            if folder.exists():
                folder.rename(old)
            fresh.rename(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


def _former(folder: Path) -> dict[str, Any] | None:
    """Parameters of the rows that a former demo wrote; ``None`` where there is nothing yet."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if not all((folder / name).is_file() for name in (_MARKER, _REPORT)):
        raise ValueError(
            f"data.train={folder} was not made by the demo, which replaces what is there: name another directory, "
            f"remove this one, or train on its data with penumbra train data.train={folder}"
        )
    former: dict[str, Any] = json.loads((folder / _MARKER).read_text())
    return former


def _refuse_strangers(folder: Path) -> None:
    present = {path.name for path in folder.iterdir()}
    own = {_MARKER, _REPORT, *json.loads((folder / _REPORT).read_text())["files"]} if present else set()
    if strangers := sorted(present - own):
        raise ValueError(
            f"data.train={folder} also holds {', '.join(strangers[:3])}, which the demo did not write: "
            "move that elsewhere, or name another directory"
        )
