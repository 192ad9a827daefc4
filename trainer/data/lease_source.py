"""Where a reader gets its work from."""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol

from trainer.data.split import Lease


class Signal(Enum):
    """Answers of a source that are not work."""

    DRAIN = "drain"
    DONE = "done"


Drain: Final = Signal.DRAIN
"""Nothing to read for now: hand over what is half finished and ask again."""

Done: Final = Signal.DONE
"""There will be no more work."""


class LeaseSource(Protocol):
    """Hands out leases. Called by several reader threads at once; a call may block."""

    def next(self) -> Lease | Signal:
        """The next lease, ``Drain`` or ``Done``. After ``Done`` it is not called again by that thread."""
