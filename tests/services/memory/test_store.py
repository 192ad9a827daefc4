"""The keeper's memory store over its real socket, used from other processes."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from services.memory.descriptors import KeeperError, request, same_user, socket_address
from services.memory.process import identify, kill_and_confirm
from services.memory.store import MemoryStore

_CHILD = """
import json, sys
from services.memory.descriptors import KeeperError, request
try:
    answer, fd = request(sys.argv[1], json.loads(sys.argv[2]))
    print(json.dumps([answer, fd is not None]))
except KeeperError as error:
    print(json.dumps([str(error), False]))
"""
_WRITER = """
import mmap, sys, time
from services.memory.descriptors import request
_, fd = request(sys.argv[1], {"op": "create", "name": "rows", "bytes": 8192})
memory = mmap.mmap(fd, 8192)
memory[4096:4101] = b"alive"
print("written", flush=True)
time.sleep(60)
"""


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[MemoryStore]:
    store = MemoryStore(f"test-{os.getpid()}-{request.node.name[:40]}")
    yield store
    store.close()


def _from_another_process(store: MemoryStore, **message: Any) -> tuple[Any, bool]:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, store.name, json.dumps(message)], capture_output=True, text=True, check=True
    )
    answer, with_fd = json.loads(done.stdout)
    return answer, with_fd


def _start_writer(store: MemoryStore) -> subprocess.Popen[str]:
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, store.name], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "written\n"
    return writer


def _penumbra_descriptors() -> list[str]:
    """Links of this process's descriptors that are memory of a store."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue  # the one that listed the directory
    return [link for link in links if "penumbra:" in link]


def test_requests_of_another_process(store: MemoryStore) -> None:
    assert _from_another_process(store, op="create", name="a/rows", bytes=4096) == ({"bytes": 4096}, True)
    refused, _ = _from_another_process(store, op="create", name="a/rows", bytes=4096)
    assert refused == f"keeper '{store.name}' already holds memory named 'a/rows'"
    assert _from_another_process(store, op="open", name="a/rows") == ({"bytes": 4096}, True)
    refused, _ = _from_another_process(store, op="open", name="b/rows")
    assert refused == f"keeper '{store.name}' holds no memory named 'b/rows'"
    assert _from_another_process(store, op="list") == ({"regions": {"a/rows": 4096}}, False)
    assert store.held_bytes() == 4096


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"op": "format"}, "unknown request 'format'"),
        ({"op": "create", "name": "a"}, "'a' cannot have None bytes"),
        ({"op": "create", "name": "a", "bytes": "many"}, "'a' cannot have 'many' bytes"),
        ({"op": "create", "name": "a", "bytes": 0}, "'a' cannot have 0 bytes"),
        ({"op": "create", "name": "a", "bytes": -4096}, "'a' cannot have -4096 bytes"),
        ({"op": "create", "name": "a", "bytes": 1 << 80}, "bytes"),
        ({"op": "create", "name": "a\0b", "bytes": 4096}, "null"),
    ],
)
def test_a_bad_request_is_answered_and_leaves_nothing(store: MemoryStore, message: dict[str, Any], says: str) -> None:
    with pytest.raises(KeeperError, match=says):
        request(store.name, message)
    assert request(store.name, {"op": "list"}) == ({"regions": {}}, None)
    assert _penumbra_descriptors() == []


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b"[1]", b"7", b"{"])
def test_noise_does_not_end_the_service(store: MemoryStore, raw: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(socket_address(store.name))
        client.send(raw)
        client.settimeout(10)
        assert client.recv(100) == b""  # closed without an answer
    assert request(store.name, {"op": "list"}) == ({"regions": {}}, None)


def test_release_by_prefix_frees_the_names(store: MemoryStore) -> None:
    for name in ("trainer-1.g1/slab-0", "trainer-1.g1/slab-1", "trainer-10.g1/slab-0"):
        _, fd = request(store.name, {"op": "create", "name": name, "bytes": 4096})
        assert fd is not None
        os.close(fd)
    assert request(store.name, {"op": "release", "name": "trainer-1.g1/"})[0] == {"released": 2}
    assert request(store.name, {"op": "list"})[0] == {"regions": {"trainer-10.g1/slab-0": 4096}}
    assert store.release("nobody") == 0


def test_a_silent_client_keeps_nobody_waiting(store: MemoryStore) -> None:
    """Stopped clients stay connected and say nothing: others are answered while they are still there."""
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
    for client in silent:
        client.connect(socket_address(store.name))
    assert request(store.name, {"op": "list"})[0] == {"regions": {}}
    for client in silent:
        client.setblocking(False)
        with pytest.raises(BlockingIOError):  # not closed: its own timeout is not over
            client.recv(1)
        client.close()


def test_only_processes_of_the_same_user_pass() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        assert same_user(here)
    if os.getuid() != 0:
        return  # only root can become somebody else
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0penumbra/test-uid-{os.getpid()}")
    listener.listen(1)
    child = (
        "import os, socket, sys\n"
        "os.setuid(12345)\n"
        "client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "client.connect(chr(0) + sys.argv[1])\n"
        "client.recv(1)\n"
    )
    with listener, subprocess.Popen([sys.executable, "-c", child, f"penumbra/test-uid-{os.getpid()}"]):
        connection, _ = listener.accept()
        with connection:
            assert not same_user(connection)


def test_memory_outlives_the_process_that_made_it(store: MemoryStore) -> None:
    before = set(os.listdir("/dev/shm"))
    with _start_writer(store) as writer:
        assert kill_and_confirm(identify(writer.pid))
        assert writer.wait() == -signal.SIGKILL
    answer, fd = request(store.name, {"op": "open", "name": "rows"})
    assert fd is not None
    with mmap.mmap(fd, answer["bytes"]) as memory:
        assert memory[4096:4101] == b"alive"
        assert memory[:4096] == bytes(4096)
    os.close(fd)
    left = set(os.listdir("/dev/shm")) - before
    assert [name for name in left if not name.startswith("plasma")] == []  # Ray's, if one runs beside


def test_nothing_is_left_when_the_store_ends() -> None:
    name = f"test-{os.getpid()}-ends"
    store = MemoryStore(name)
    _, fd = request(name, {"op": "create", "name": "rows", "bytes": 1 << 20})
    assert fd is not None
    os.close(fd)
    assert len(set(_penumbra_descriptors())) == 1
    store.close()
    deadline = time.monotonic() + 10
    while _penumbra_descriptors() and time.monotonic() < deadline:
        time.sleep(0.01)  # the thread that sent the descriptor closes its own copy just after
    assert _penumbra_descriptors() == []
    with pytest.raises(KeeperError, match=r"did not answer 'list': .*refused"):
        request(name, {"op": "list"})
    again = MemoryStore(name)  # the name is free at once
    with pytest.raises(KeeperError, match=r"cannot listen on its socket: .*in use"):
        MemoryStore(name)
    assert request(name, {"op": "list"}) == ({"regions": {}}, None)
    again.close()


def test_a_region_is_never_confused_with_another_one(store: MemoryStore) -> None:
    """Regions come and go while others are opened: what arrives is always the region that was asked for."""
    _, fd = request(store.name, {"op": "create", "name": "wanted", "bytes": 4096})
    assert fd is not None
    os.pwrite(fd, b"wanted", 0)
    os.close(fd)
    done = threading.Event()

    def churn() -> None:
        for index in range(400):
            _, other = request(store.name, {"op": "create", "name": f"other-{index}", "bytes": 4096})
            assert other is not None
            os.close(other)
            store.release(f"other-{index}")
        done.set()

    thread = threading.Thread(target=churn)
    thread.start()
    opened = 0
    while not done.is_set():
        _, fd = request(store.name, {"op": "open", "name": "wanted"})
        assert fd is not None
        assert os.pread(fd, 6, 0) == b"wanted"
        os.close(fd)
        opened += 1
    thread.join()
    assert opened > 0
