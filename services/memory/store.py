"""The keeper's own part: named memfds, kept open so that their memory outlives the processes that use it."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import Any

from services.memory.descriptors import listen, raise_descriptor_limit, receive_request, same_user, send_answer

_IDLE_CONNECTION_S = 5.0
_RETRY_S = 0.05


class MemoryStore:
    """Serves ``create``, ``open``, ``give``, ``release`` and ``list`` for one node.

    ``create`` refuses a name that exists: memory that may hold somebody's rows is never replaced silently.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._regions: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._closed = False
        raise_descriptor_limit()  # one descriptor a region
        self._socket = listen(name)
        self._thread = threading.Thread(target=self._serve, name="keeper-descriptors", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving and let go of all memory."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the serving thread; closing alone would leave it listening
        self._thread.join()
        self._socket.close()
        with self._lock:
            for fd, _nbytes in self._regions.values():
                os.close(fd)
            self._regions.clear()

    def holds(self, name: str) -> bool:
        """Whether there is a region of that name."""
        with self._lock:
            return name in self._regions

    def held_bytes(self) -> int:
        """Bytes of all regions."""
        with self._lock:
            return sum(nbytes for _fd, nbytes in self._regions.values())

    def release(self, prefix: str) -> int:
        """Close every region whose name starts with ``prefix``; returns how many."""
        with self._lock:
            names = [name for name in self._regions if name.startswith(prefix)]
            for name in names:
                os.close(self._regions.pop(name)[0])
        return len(names)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(_RETRY_S)  # no descriptor is free: the rows of a dead shard will still be asked for
                continue
            # A thread each: a stopped client keeps nobody else waiting.
            threading.Thread(target=self._answer, args=(connection,), name="keeper-answer", daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError):
            connection.settimeout(_IDLE_CONNECTION_S)
            if not same_user(connection):
                return
            message, given = receive_request(connection)
            try:
                answer, fd = self._handle(message, given)
            finally:
                if given is not None:
                    os.close(given)
            try:
                send_answer(connection, answer, fd)
            finally:
                if fd is not None:
                    os.close(fd)

    def _handle(self, message: dict[str, Any], given: int | None) -> tuple[dict[str, Any], int | None]:
        """The answer, with a descriptor of its own (a release meanwhile could give its number to another region)."""
        op, name = message.get("op"), str(message.get("name", ""))
        try:
            if op == "create":
                nbytes = message.get("bytes")
                if not isinstance(nbytes, int) or not 0 < nbytes < 1 << 63:
                    raise ValueError(f"memory named {name!r} cannot have {nbytes!r} bytes")
                return {"bytes": nbytes}, self._create(name, nbytes)
            if op == "open":
                with self._lock:
                    if name not in self._regions:
                        raise ValueError(f"keeper {self.name!r} holds no memory named {name!r}")
                    fd, nbytes = self._regions[name]
                    return {"bytes": nbytes}, os.dup(fd)
            if op == "give":
                return {"held": self._take(name, given)}, None
            if op == "release":
                return {"released": self.release(name)}, None
            if op == "list":
                with self._lock:
                    return {"regions": {key: nbytes for key, (_fd, nbytes) in self._regions.items()}}, None
            raise ValueError(f"unknown request {op!r}")
        except (ValueError, OSError) as error:
            return {"error": f"{error}" if isinstance(error, ValueError) else f"{op} {name!r}: {error}"}, None

    def _take(self, name: str, fd: int | None) -> bool:
        """Memory of a keeper that died, from a process that maps it; False when another one gave it already."""
        if fd is None:
            raise ValueError(f"memory named {name!r} was to be given without a descriptor")
        found = os.fstat(fd)
        with self._lock:
            if name in self._regions:
                if os.fstat(self._regions[name][0]).st_ino != found.st_ino:
                    raise ValueError(f"keeper {self.name!r} holds other memory named {name!r}")
                return False
            self._regions[name] = (os.dup(fd), found.st_size)
        return True

    def _create(self, name: str, nbytes: int) -> int:
        with self._lock:
            if name in self._regions:
                raise ValueError(f"keeper {self.name!r} already holds memory named {name!r}")
            fd = os.memfd_create(f"penumbra:{name}"[:200], os.MFD_CLOEXEC)
            try:
                os.ftruncate(fd, nbytes)
            except OSError:
                os.close(fd)
                raise
            self._regions[name] = (fd, nbytes)
            return os.dup(fd)
