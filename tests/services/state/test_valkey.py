"""The private server, with real signals."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from services.memory.process import ProcessIdentity, identify, is_alive
from services.state.errors import StateDirectoryInUseError, StateStoreUnavailableError
from services.state.place import MAX_SOCKET_PATH_BYTES, read_server_file
from services.state.store import StateStore
from services.state.valkey import EmbeddedValkey
from tests.services.state.some_records import event, pls

_OWNER = """
import sys, time
from services.state.valkey import EmbeddedValkey
server = EmbeddedValkey(sys.argv[1])
print(server.pid, flush=True)
time.sleep(60)
"""


def _embedded(store: StateStore) -> EmbeddedValkey:
    assert store.embedded is not None
    return store.embedded


def _kill(server: EmbeddedValkey) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    _until(lambda: server.exited)


def _until(holds: object, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _owner(directory: Path) -> tuple[subprocess.Popen[str], ProcessIdentity]:
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, str(directory)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    return owner, identify(int(owner.stdout.readline()))


def test_only_its_user_can_open_it(store: StateStore, tmp_path: Path) -> None:
    place = tmp_path / "state" / "valkey.sock"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert store.client.config_get("port")["port"] == "0"
    assert store.client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"


def test_a_killed_server_has_every_acknowledged_write(store: StateStore) -> None:
    server, acknowledged = _embedded(store), 0
    killer = threading.Timer(0.3, _kill, (server,))
    killer.start()
    with pytest.raises(StateStoreUnavailableError):
        while True:
            assert store.append_event(event(acknowledged + 1))
            acknowledged += 1
    killer.join()
    assert not server.alive()
    server.restart()
    kept = [found.sequence for found in store.read_events()]
    assert acknowledged > 10
    assert kept in ([*range(1, acknowledged + 1)], [*range(1, acknowledged + 2)])  # the last answer may be lost


def test_state_survives_close_and_open(tmp_path: Path) -> None:
    for samples in (1, 2, 3):
        store = StateStore.open(None, "r", tmp_path)
        before = store.get(type(pls(1)))
        assert (before.record.total_samples if before else 0) == samples - 1
        store.put(pls(samples))
        store.close()
    assert not (tmp_path / "state" / "valkey.sock").exists()
    assert read_server_file(tmp_path / "state") is None


def test_a_stopped_server_is_noticed_and_goes_on(store: StateStore) -> None:
    server = _embedded(store)
    assert server.pid is not None
    store.put(pls(1))
    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert not server.alive(timeout_s=0.2)
        assert not server.exited
        with pytest.raises(StateStoreUnavailableError, match="Timeout"):
            store.put(pls(2))
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert server.alive()
    assert store.get(type(pls(1))) is not None


def test_a_stopped_server_can_be_restarted_and_closed(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path)
    assert server.pid is not None
    stopped = identify(server.pid)
    os.kill(stopped.pid, signal.SIGSTOP)
    server.restart()
    assert server.alive()
    assert not is_alive(stopped)
    server.close()
    server.close()
    with pytest.raises(StateStoreUnavailableError, match="closed"):
        server.restart()


def test_it_dies_with_its_owner_even_while_stopped(tmp_path: Path) -> None:
    owner, server = _owner(tmp_path)
    os.kill(server.pid, signal.SIGSTOP)
    owner.kill()
    owner.communicate()
    _until(lambda: not is_alive(server))
    with EmbeddedValkey(tmp_path) as successor:
        assert successor.alive()


def test_it_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    servers: list[EmbeddedValkey] = []
    thread = threading.Thread(target=lambda: servers.append(EmbeddedValkey(tmp_path)))
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert servers[0].alive()
    servers[0].close()


def test_two_never_share_a_directory(tmp_path: Path) -> None:
    owner, _ = _owner(tmp_path)
    try:
        with pytest.raises(StateDirectoryInUseError, match=f"process {owner.pid}"):
            EmbeddedValkey(tmp_path, startup_timeout_s=0.2)
    finally:
        owner.kill()
        owner.communicate()
    with EmbeddedValkey(tmp_path), pytest.raises(StateDirectoryInUseError):
        EmbeddedValkey(tmp_path, startup_timeout_s=0.1)


def test_a_long_path_gets_a_private_place(tmp_path: Path) -> None:
    directory = tmp_path / ("x" * MAX_SOCKET_PATH_BYTES)
    server = EmbeddedValkey(directory)
    told = read_server_file(directory)
    assert told is not None
    place = Path(told.socket)
    assert place.is_relative_to(tempfile.gettempdir())
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert server.alive()
    server.close()
    assert not place.parent.exists()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as server:
        StateStore(server.url, "r").put(pls(1))
    (tmp_path / "appendonlydir" / "appendonly.aof.manifest").write_text("no manifest\n")
    with pytest.raises(StateStoreUnavailableError, match=r"does not start: exit code 1: .*valkey\.log"):
        EmbeddedValkey(tmp_path)
