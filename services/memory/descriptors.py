"""Descriptor passing between a node's keeper and its actors: one JSON request, one JSON answer with at most one fd.

The socket lives in the abstract namespace (no file to leave behind, no 107-byte path limit to hit with deep run
directories); since that has no permission bits, the server checks the peer's uid.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import struct
from typing import Any

_MAX_MESSAGE_BYTES = 65_536


class KeeperError(RuntimeError):
    """The keeper refused a request or did not answer."""


def raise_descriptor_limit() -> None:
    """As many open files as the system lets this process have: slabs of many trainers pass the usual 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def socket_address(name: str) -> str:
    """Abstract socket address of a keeper."""
    return f"\0penumbra/{name}"


def listen(name: str) -> socket.socket:
    """Bind the keeper's socket.

    Raises:
        KeeperError: another keeper of this node has the name.
    """
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        server.bind(socket_address(name))
        server.listen(128)
    except OSError as error:
        server.close()
        raise KeeperError(f"keeper {name!r} cannot listen on its socket: {error}") from error
    return server


def same_user(connection: socket.socket) -> bool:
    """True when the peer process runs as our user."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _pid, uid, _gid = struct.unpack("3i", raw)
    return bool(uid == os.getuid())


def receive_request(connection: socket.socket) -> tuple[dict[str, Any], int | None]:
    """Read one request, with the descriptor that came with it, if any: the caller owns it.

    Raises:
        ValueError: what arrived is not a JSON object.
    """
    raw, fds, _flags, _peer = socket.recv_fds(connection, _MAX_MESSAGE_BYTES, 1)
    try:
        message = json.loads(raw)
        if not isinstance(message, dict):
            raise ValueError(f"not a request: {message!r:.100}")
    except ValueError:
        for fd in fds:
            os.close(fd)
        raise
    return message, fds[0] if fds else None


def send_answer(connection: socket.socket, answer: dict[str, Any], fd: int | None) -> None:
    """Send one answer, with a descriptor when there is one."""
    socket.send_fds(connection, [json.dumps(answer).encode()], [] if fd is None else [fd])


def request(
    name: str, message: dict[str, Any], timeout_s: float = 30.0, fd: int | None = None
) -> tuple[dict[str, Any], int | None]:
    """Ask the keeper called ``name``, sending it ``fd`` if given; the caller owns the returned descriptor.

    Raises:
        KeeperError: unreachable, slow, or the request was refused (its message says why).
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(socket_address(name))
            socket.send_fds(connection, [json.dumps(message).encode()], [] if fd is None else [fd])
            raw, fds, _flags, _peer = socket.recv_fds(connection, _MAX_MESSAGE_BYTES, 1)
        except OSError as error:
            raise KeeperError(f"keeper {name!r} did not answer {message.get('op')!r}: {error}") from error
    if not raw:
        raise KeeperError(f"keeper {name!r} closed the connection on {message.get('op')!r}")
    answer = dict(json.loads(raw))
    if "error" in answer:
        for received in fds:
            os.close(received)
        raise KeeperError(str(answer["error"]))
    return answer, fds[0] if fds else None
