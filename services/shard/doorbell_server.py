"""The shard's end of its doorbells: one thread that answers slab requests in the order in which they arrive."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import selectors
import socket
import threading
import time
import traceback
from collections.abc import Callable

import torch

from services.identity import Address
from services.memory.descriptors import same_user
from services.transport.doorbell import HELLO, MAX_ANSWER_BYTES, RING, doorbell_address
from services.transport.messages import Sender, SlabLookup, SlabPush

Step = Callable[[Sender, SlabPush | None, SlabLookup | None], None]

_DONE = b"\0"
_RETRY_S = 0.01


class DoorbellServer:
    """Listens as long as the shard's process lives; a process that ends closes its connections, which callers see."""

    def __init__(self, keeper: str, shard: Address, step: Step) -> None:
        """Start the thread; ``step`` is called from it.

        Raises:
            OSError: another process of this node answers for the same incarnation.
        """
        self._step = step
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._listener.bind(doorbell_address(keeper, shard))
            self._listener.listen(512)
        except OSError:
            self._listener.close()
            raise
        self._selector.register(self._listener, selectors.EVENT_READ, self._admit)
        threading.Thread(target=self._run, name="doorbell", daemon=True).start()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException:  # a shard that is deaf but alive would hang every trainer: better it is replaced
            traceback.print_exc()
            os._exit(1)

    def _serve(self) -> None:
        torch.set_num_threads(1)  # a setting of each thread; two have cost 50× in fbgemm's backward (DESIGN trap 3)
        while True:
            for key, _ in self._selector.select():
                key.data(key.fileobj)

    def _admit(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # the caller is gone again, or no descriptor is free: those that are connected go on
            time.sleep(_RETRY_S)
            return
        if same_user(connection):  # abstract sockets have no permission bits
            self._selector.register(connection, selectors.EVENT_READ, self._greet)
        else:
            connection.close()

    def _greet(self, connection: socket.socket) -> None:
        """The first message says who calls; nobody waits for a caller that was stopped before it sent it."""
        hello = self._receive(connection, HELLO.size)
        if hello is not None:
            sender = Sender(*HELLO.unpack(hello))
            self._selector.modify(connection, selectors.EVENT_READ, functools.partial(self._answer, sender))

    def _receive(self, connection: socket.socket, size: int) -> bytes | None:
        """One message of ``size`` bytes; ``None`` from a caller that has hung up, died, or speaks something else."""
        message = b""
        with contextlib.suppress(OSError):
            message = connection.recv(size)
        if len(message) == size:
            return message
        self._selector.unregister(connection)
        connection.close()
        return None

    def _answer(self, sender: Sender, connection: socket.socket) -> None:
        message = self._receive(connection, RING.size)
        if message is None:
            return
        slab, slot, sequence, rate, lookup_slab, lookup_slot = RING.unpack(message)
        try:
            self._step(
                sender,
                SlabPush(slab, slot, sequence, rate) if slab >= 0 else None,
                SlabLookup(lookup_slab, lookup_slot) if lookup_slab >= 0 else None,
            )
            answer = _DONE
        except Exception as error:
            answer = _failure(error)
        with contextlib.suppress(OSError):  # a trainer that died meanwhile needs no answer
            connection.send(answer)


def _failure(error: Exception) -> bytes:
    """The exception, with the shard's traceback as a note; in words only when it cannot travel."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickled = pickle.dumps(error)
        if len(pickled) < MAX_ANSWER_BYTES:
            return pickled
    except Exception:
        pass
    return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error!s:.1000}"))
