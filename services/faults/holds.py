"""Holds: faults that last, and end when their time is up."""

from __future__ import annotations

import time
from typing import NamedTuple

from services.faults.fault_log import FaultLog, Released
from services.faults.held import Held
from services.faults.storage_switch import ActiveFault, turn_off, turn_on
from services.faults.victim import Victim
from services.memory.process import ProcessIdentity


class _Hold(NamedTuple):
    until_s: float
    began_s: float
    fault: int
    occurrence: int
    what: ProcessIdentity | str
    """A stopped process, or the id of a storage fault."""


class Holds:
    """Begins and ends them, the guardian knowing of each before it begins and until after it ended."""

    def __init__(self, held: Held, log: FaultLog, control: str) -> None:
        self._held, self._log, self._control = held, log, control
        self._holds: list[_Hold] = []
        self.stopped: set[ProcessIdentity] = set()
        """Processes that stand still for a fault."""

    @property
    def any(self) -> bool:
        """Whether something is held."""
        return bool(self._holds)

    @property
    def held(self) -> Held:
        """The guardian's line."""
        return self._held

    def stop(self, process: ProcessIdentity, fault: int, occurrence: int, now_s: float, hold_s: float) -> None:
        """Keep a process stopped that was frozen (and announced) already."""
        self.stopped.add(process)
        self._holds.append(_Hold(now_s + hold_s, now_s, fault, occurrence, process))

    def storage(self, active: ActiveFault, fault: int, occurrence: int, now_s: float, hold_s: float) -> None:
        """Turn a storage fault on."""
        self._held.storage(self._control)
        turn_on(self._control, active)
        self._holds.append(_Hold(now_s + hold_s, now_s, fault, occurrence, active.id))

    def release_due(self, now_s: float) -> None:
        """End those whose time is up."""
        for hold in [hold for hold in self._holds if hold.until_s <= now_s]:
            self._release(hold, now_s)

    def release_all(self, now_s: float) -> None:
        """End all, whether their time is up or not."""
        for hold in list(self._holds):
            self._release(hold, now_s)

    def _release(self, hold: _Hold, now_s: float) -> None:
        self._holds.remove(hold)
        found = True
        if isinstance(hold.what, ProcessIdentity):
            found = self._continue(hold.what)
        else:
            turn_off(self._control, hold.what)
            if not any(isinstance(other.what, str) for other in self._holds):
                self._held.storage_released(self._control)
        self._log.add(
            Released(
                time=time.time(),
                fault=hold.fault,
                occurrence=hold.occurrence,
                held_s=now_s - hold.began_s,
                found="undone" if found else "dead",
            )
        )

    def _continue(self, process: ProcessIdentity) -> bool:
        self.stopped.discard(process)
        try:
            with Victim(process) as victim:
                victim.resume()
            return True
        except ProcessLookupError:
            return False
        finally:
            self._held.process_released(process)
