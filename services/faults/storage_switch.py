"""The control file that turns storage faults on and off in all processes of a run while they work."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from services.faults.storage_fault import StorageFault

CHECK_EVERY_S: Final = 0.05
_USED: Final = ".used"


class ActiveFault(BaseModel):
    """A fault that is on; ``id`` tells it from an equal one before."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    fault: StorageFault


class _Control(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    faults: tuple[ActiveFault, ...] = ()


class StorageSwitch:
    """The reading side; looks at the file at most every 50 ms, and parses it only when it was replaced. Thread-safe."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._next_check_s = 0.0
        self._seen: tuple[int, int, int] | None = None
        self._active: tuple[ActiveFault, ...] = ()
        with contextlib.suppress(OSError):  # without the folder nobody can control anything either
            Path(path + _USED).touch()

    def active(self) -> tuple[ActiveFault, ...]:
        """The faults that are on now; none without a file.

        Raises:
            ValueError: the file is not what ``turn_on`` writes.
        """
        with self._lock:
            now_s = time.monotonic()
            if now_s >= self._next_check_s:
                self._next_check_s = now_s + CHECK_EVERY_S
                self._look()
            return self._active

    def _look(self) -> None:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            self._seen, self._active = None, ()
            return
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        if seen != self._seen:
            self._active = _read(self.path).faults
            self._seen = seen


def turn_on(path: str, fault: ActiveFault) -> None:
    """Add a fault; one writer at a time."""
    _write(path, (*_read(path).faults, fault))


def turn_off(path: str, fault_id: str) -> None:
    """Take a fault away; nothing when it is not on."""
    _write(path, tuple(fault for fault in _read(path).faults if fault.id != fault_id))


def is_used(path: str) -> bool:
    """Whether any process has opened a storage under this control file."""
    return os.path.exists(path + _USED)


def _read(path: str) -> _Control:
    try:
        return _Control.model_validate_json(Path(path).read_bytes())
    except FileNotFoundError:
        return _Control()
    except ValidationError as error:
        raise ValueError(f"{path}: not a storage fault control file: {error}") from error


def _write(path: str, faults: tuple[ActiveFault, ...]) -> None:
    if not faults:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    temporary = f"{path}.tmp"
    Path(temporary).write_text(_Control(faults=faults).model_dump_json(), encoding="utf-8")
    os.replace(temporary, path)
