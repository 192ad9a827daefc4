"""PauseGate: stops a trainer's worker threads at a batch edge, for a cut of the whole run at one instant."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator


class PauseGate:
    """Threads look at ``closed`` once a step, and park while it is.

    A thread that waits for input has nothing in flight, so it counts as parked. Whoever closed the gate has to open it
    in time; if it is gone, the gate opens by itself, and ``open`` then says that the pause did not hold.
    """

    def __init__(self, threads: int) -> None:
        """``threads``: worker threads that will pass here; each calls ``leave`` when it ends."""
        self._changed = threading.Condition()
        self._working = threads
        self._until_s = 0.0
        self._held = False
        self.closed = False

    def close(self, hold_s: float, timeout_s: float) -> bool:
        """Have every thread park; False, and the gate open again, when one does not within ``timeout_s``.

        Args:
            hold_s: after so long the gate opens by itself.
            timeout_s: longest time to wait for the threads.
        """
        with self._changed:
            self._until_s = time.monotonic() + hold_s
            self.closed = self._held = True
            parked = self._changed.wait_for(lambda: self._working == 0, timeout_s)
            if not parked:
                self._open()
            return parked

    def open(self) -> bool:
        """Let the threads go on; False when they already did, since nobody opened the gate in time."""
        with self._changed:
            held = self._held
            self._open()
            return held

    def park(self) -> None:
        """Wait here while the gate is closed; nothing may be in flight."""
        with self.idle():
            pass

    @contextlib.contextmanager
    def idle(self) -> Iterator[None]:
        """Around a wait for input with nothing in flight: parked meanwhile, and after it while the gate is closed."""
        self._count(-1)
        try:
            yield
        finally:
            with self._changed:
                while self.closed:
                    if not self._changed.wait_for(lambda: not self.closed, max(0.0, self._until_s - time.monotonic())):
                        self._held = False
                        self._open()
                self._working += 1

    def leave(self) -> None:
        """The thread ends: nobody waits for it any more."""
        self._count(-1)

    def _count(self, change: int) -> None:
        with self._changed:
            self._working += change
            self._changed.notify_all()

    def _open(self) -> None:
        self.closed = self._held = False
        self._changed.notify_all()
