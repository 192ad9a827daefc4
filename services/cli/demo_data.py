"""The demo's click log: written once, written again when the parameters change."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from trainer.data.synth import SynthFormat, synthesize

_REPORT = "synth.json"


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
            ValueError: ``folder`` holds files that are no synthetic data; they are not touched.
        """
        if not self._there(folder):
            self._write(folder)
        auc = json.loads((folder / _REPORT).read_text())["last_tenth"]["bayes_auc"]
        return None if auc is None else float(auc)

    def _there(self, folder: Path) -> bool:
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return False
        if not folder.is_dir() or not (folder / _REPORT).is_file():
            raise ValueError(f"data.train={folder} holds other data; name a directory that the demo may write")
        report = json.loads((folder / _REPORT).read_text())
        capped = max(report["table_rows"].values())
        return (report["rows"], report["seed"], report["format"]) == (self.rows, self.seed, self.format) and (
            capped == self.max_table_rows
        )

    def _write(self, folder: Path) -> None:
        fresh = folder.with_name(f".{folder.name}-{os.getpid()}")
        try:
            synthesize(fresh, rows=self.rows, seed=self.seed, max_table_rows=self.max_table_rows, format=self.format)
            if folder.exists():
                for name in ("part-*", _REPORT):
                    for old in folder.glob(name):
                        old.unlink()
                folder.rmdir()  # fails, touching nothing else, where a person keeps own files
            fresh.rename(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
