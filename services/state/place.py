"""Where a private server lives: its directory, its socket, and who owns it. One owner at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from services.memory.process import ProcessIdentity, is_alive, kill_and_confirm
from services.state.errors import StateDirectoryInUseError

MAX_SOCKET_PATH_BYTES: Final = 107
"""``sun_path`` less its end mark: longer ones cannot be bound or connected to."""

_SOCKET: Final = "valkey.sock"
_SERVER: Final = "server.json"
_LOCK: Final = "owner.lock"
_PRIVATE: Final = "penumbra-state-"


class ServerFile(BaseModel):
    """``server.json``: the server on this directory and who started it."""

    model_config = ConfigDict(frozen=True)

    host: str
    owner: ProcessIdentity
    server: ProcessIdentity | None
    socket: str


def read_server_file(directory: Path) -> ServerFile | None:
    """What the last owner left; ``None``: nothing that can be read."""
    try:
        return ServerFile.model_validate_json((directory / _SERVER).read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def write_server_file(directory: Path, file: ServerFile) -> None:
    """Replace it; a reader sees the old one or the new one."""
    fresh = directory / f"{_SERVER}.new"
    fresh.write_text(file.model_dump_json() + "\n", encoding="utf-8")
    fresh.replace(directory / _SERVER)


def remove_server_file(directory: Path) -> None:
    """Nobody is here any more."""
    (directory / _SERVER).unlink(missing_ok=True)


def take(directory: Path, timeout_s: float) -> int:
    """Become the directory's owner; returns a locked descriptor.

    The server is given the same descriptor, so that the lock lasts as long as either of them. A server whose owner is
    dead is killed.

    Raises:
        StateDirectoryInUseError: its owner is alive, or the lock is held from another machine.
    """
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            left = read_server_file(directory)
            here = left is not None and left.host == socket.gethostname()
            if here and left and left.server and not is_alive(left.owner):
                kill_and_confirm(left.server)
            if time.monotonic() > deadline:
                who = f"process {left.owner.pid} on {left.host}" if left else "an unknown process"
                raise StateDirectoryInUseError(
                    f"{directory} belongs to {who}: two servers would damage one append-only file; stop that one first"
                )
            time.sleep(0.02)
        _remove_leftovers(directory)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def socket_place(directory: Path) -> Path:
    """Where to put the socket: in the directory, else in a private one below the temporary directory.

    Else: its path there would be too long, or the file system has no sockets. ``server.json`` tells where it is.
    """
    beside = directory.resolve() / _SOCKET
    if len(os.fsencode(beside)) <= MAX_SOCKET_PATH_BYTES and _can_bind(beside):
        return beside
    for root in (None, "/tmp"):  # TMPDIR may be long, too
        private = Path(tempfile.mkdtemp(prefix=_PRIVATE, dir=root))
        if len(os.fsencode(private / _SOCKET)) <= MAX_SOCKET_PATH_BYTES:
            return private / _SOCKET
        private.rmdir()
    raise OSError(errno.ENAMETOOLONG, f"no directory for a socket of at most {MAX_SOCKET_PATH_BYTES} bytes", directory)


def remove_socket(directory: Path, place: Path) -> None:
    """Remove a socket, and the directory that was made for it.

    One elsewhere is another run's by now: its directory was moved after the server ended.
    """
    if place.parent == directory.resolve():
        place.unlink(missing_ok=True)
    elif place.parent.name.startswith(_PRIVATE):
        shutil.rmtree(place.parent, ignore_errors=True)


def _remove_leftovers(directory: Path) -> None:
    left = read_server_file(directory)
    if left is not None and left.host == socket.gethostname():
        remove_socket(directory, Path(left.socket))
    remove_server_file(directory)


def _can_bind(path: Path) -> bool:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.bind(os.fspath(path))
        except OSError:
            return False
    path.unlink()
    return True
