"""The files of a run directory that grow while it runs: events, metrics, rejected lines."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from services.state.run_records import EventRecord
from trainer.data.block import RejectedLine


class RunFiles:
    """Appends one JSON object a line; thread-safe."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "checkpoints").mkdir(exist_ok=True)
        self._lock = threading.Lock()
        self._failing = False
        self._alarms: list[str] = []
        self.sequence = 0
        self.on_event: Callable[[EventRecord], None] = lambda event: None

    def event(self, kind: str, **fields: Any) -> None:
        """One line of ``events.jsonl``."""
        now_s = time.time()
        self._append("events.jsonl", [{"time": now_s, "kind": kind, **fields}])
        plain = json.loads(json.dumps(fields, default=str))
        with self._lock:  # the store takes them in the order of their numbers
            self.sequence += 1
            self.on_event(EventRecord(sequence=self.sequence, time_unix_s=now_s, what=kind, fields=plain))

    def metrics(self, **fields: Any) -> None:
        """One line of ``metrics.jsonl``."""
        self._append("metrics.jsonl", [{"time": time.time(), **fields}])

    def rejected(self, lines: Iterable[RejectedLine]) -> None:
        """Bad input lines to ``rejected.jsonl``."""
        self._append("rejected.jsonl", [line._asdict() for line in lines])

    def take_alarms(self) -> list[str]:
        """What could not be written since the last call; training goes on without it."""
        with self._lock:
            alarms, self._alarms = self._alarms, []
            return alarms

    def _append(self, name: str, records: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(record, default=str) + "\n" for record in records)
        with self._lock:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                with open(self.directory / name, "a", encoding="utf-8") as file:
                    file.write(text)
            except OSError as error:
                if not self._failing:
                    self._alarms.append(f"{self.directory / name} cannot be written, training goes on: {error}")
                self._failing = True
            else:
                self._failing = False
