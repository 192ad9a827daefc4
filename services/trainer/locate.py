"""How a worker thread finds the successor of a shard that is gone."""

from __future__ import annotations

import threading
import time
from typing import Any

import ray

from services.identity import Address
from services.transport.errors import ShardUnavailableError
from services.transport.shard_client import ShardTarget

_POLL_S = 0.01
_RETRY_S = 0.5


class ShardLocator:
    """Asks the coordinator until a younger incarnation serves; training of this thread waits meanwhile.

    There is no time limit of its own: the coordinator either replaces the shard or ends the run, and a coordinator that
    is gone for good ends this process by its lease.
    """

    def __init__(self, trainer: Address, coordinator: Any, stop: threading.Event) -> None:
        self._trainer, self._coordinator, self._stop = trainer, coordinator, stop

    def __call__(self, lost: Address) -> ShardTarget:
        """The successor of ``lost``.

        Raises:
            ShardUnavailableError: the trainer is told to stop instead.
        """
        while not self._stop.is_set():
            try:
                found = ray.get(self._coordinator.successor.remote(self._trainer, lost))
            except ray.exceptions.RayActorError:  # restarting
                time.sleep(_RETRY_S)
                continue
            if found is not None:
                return ShardTarget(*found)
            time.sleep(_POLL_S)
        raise ShardUnavailableError(lost, "the run ends")
