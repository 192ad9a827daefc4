"""The trainer's end of a doorbell: a local socket that tells a shard on the same node which slab slots are ready.

A Ray actor call costs a step of a small batch more CPU than its lookup; a message of 36 bytes on a Unix socket costs
some microseconds, and the socket closes at once when the shard's process ends. Descriptors, slabs, and everything that
is rare, still go through the keeper and Ray.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import weakref

from services.identity import Address
from services.memory.descriptors import socket_address
from services.transport.errors import ShardUnavailableError
from services.transport.messages import Sender, SlabLookup, SlabPush

RING = struct.Struct("<iiqdii")
"""Push (slab, slot, number, learning rate), then lookup (slab, slot); slab −1: none."""
HELLO = struct.Struct("<4q")
"""A ``Sender``."""
MAX_ANSWER_BYTES = 65_536
"""An answer is empty but for the failure, pickled, of what was asked: both ends are processes of one user's run."""

_CONNECT_TIMEOUT_S = 30.0


def doorbell_address(keeper: str, shard: Address) -> str:
    """Abstract socket address of a shard incarnation on the node of ``keeper``."""
    return f"{socket_address(keeper)}/{shard}"


class Doorbell:
    """Requests of one worker thread to one shard; answered in the order of the requests."""

    def __init__(self, keeper: str, shard: Address, sender: Sender) -> None:
        """Connect. A shard that is gone already shows when it is waited for."""
        self._shard = shard
        self._rung = self._answered = 0
        self._failures: dict[int, Exception] = {}
        self._lost: str | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        weakref.finalize(self, self._socket.close)  # hangs up when the line is dropped
        self._socket.settimeout(_CONNECT_TIMEOUT_S)
        try:
            self._socket.connect(doorbell_address(keeper, shard))
            self._socket.send(HELLO.pack(*sender))
        except OSError as error:
            self._lost = f"its doorbell does not answer ({error})"
        self._socket.settimeout(None)

    def ring(self, push: SlabPush | None, lookup: SlabLookup | None) -> int:
        """Ask for both; returns the number to wait for. A shard that is gone shows when it is waited for."""
        with contextlib.suppress(OSError):
            self._socket.send(RING.pack(*(push or (-1, 0, 0, 0.0)), *(lookup or (-1, 0))))
        self._rung += 1
        return self._rung

    def wait(self, number: int) -> None:
        """Until request ``number`` is answered; raises what it failed with.

        Raises:
            ShardUnavailableError: the shard's process ended before.
        """
        while self._answered < number:
            if self._lost is not None:
                raise ShardUnavailableError(self._shard, self._lost)
            try:
                answer = self._socket.recv(MAX_ANSWER_BYTES)
            except OSError as error:
                raise ShardUnavailableError(self._shard, f"its process has ended ({error})") from error
            if not answer:
                raise ShardUnavailableError(self._shard, "its process has ended")
            self._answered += 1
            if len(answer) > 1:
                self._failures[self._answered] = pickle.loads(answer)
        if self._failures and (failure := self._failures.pop(number, None)) is not None:
            raise failure
