"""The shard's end of its doorbells: one thread that answers slab requests in the order in which they arrive."""

from __future__ import annotations

import contextlib
import pickle
import selectors
import socket
import threading
import traceback
from collections.abc import Callable

import torch

from services.identity import Address
from services.memory.descriptors import same_user
from services.transport.doorbell import HELLO, MAX_ANSWER_BYTES, RING, doorbell_address
from services.transport.messages import Sender, SlabLookup, SlabPush

Step = Callable[[Sender, SlabPush | None, SlabLookup | None], None]

_DONE = b"\0"


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
        self._selector.register(self._listener, selectors.EVENT_READ)
        threading.Thread(target=self._serve, name="doorbell", daemon=True).start()

    def _serve(self) -> None:
        torch.set_num_threads(1)  # a setting of each thread; two have cost 50× in fbgemm's backward (DESIGN trap 3)
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._admit()
                else:
                    self._answer(key.fileobj, key.data)  # type: ignore[arg-type]

    def _admit(self) -> None:
        connection, _ = self._listener.accept()
        if not same_user(connection):  # abstract sockets have no permission bits
            connection.close()
            return
        hello = connection.recv(HELLO.size)  # sent with the connection: never waits for a caller that is alive
        if len(hello) != HELLO.size:
            connection.close()
            return
        self._selector.register(connection, selectors.EVENT_READ, Sender(*HELLO.unpack(hello)))

    def _answer(self, connection: socket.socket, sender: Sender) -> None:
        message = b""
        with contextlib.suppress(OSError):
            message = connection.recv(RING.size)
        if len(message) != RING.size:  # the trainer has hung up or died
            self._selector.unregister(connection)
            connection.close()
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
