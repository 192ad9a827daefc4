"""Doorbells: real sockets, a caller of another user, failures that travel, a server process that is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import uuid

import pytest

from services.identity import Address
from services.shard.doorbell_server import DoorbellServer
from services.shard.tbe import IdRangeError
from services.transport.doorbell import Doorbell, doorbell_address
from services.transport.errors import ShardUnavailableError
from services.transport.messages import Sender, SlabLookup, SlabPush

_SHARD = Address("shard", 3, 2)
_SENDER = Sender(1, 4, 5, 2)


class _Steps:
    """Notes what is asked, fails when told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[Sender, SlabPush | None, SlabLookup | None]] = []
        self.failure: Exception | None = None
        self.open = threading.Event()
        self.open.set()

    def __call__(self, sender: Sender, push: SlabPush | None, lookup: SlabLookup | None) -> None:
        self.open.wait()
        self.asked.append((sender, push, lookup))
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure


@pytest.fixture
def keeper() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def steps(keeper: str) -> _Steps:
    steps = _Steps()
    DoorbellServer(keeper, _SHARD, steps)
    return steps


def test_requests_are_served_in_order_with_all_their_numbers(keeper: str, steps: _Steps) -> None:
    bell = Doorbell(keeper, _SHARD, _SENDER)
    big = (7 << 40) + 3  # numbers carry the trainer's generation in their upper bits
    first = bell.ring(None, SlabLookup(65_536, 2))
    second = bell.ring(SlabPush(1, 0, big, 0.125), SlabLookup(0, 1))
    third = bell.ring(SlabPush(0, 1, big + 1, 0.0), None)
    bell.wait(third)
    bell.wait(first)
    bell.wait(second)
    assert steps.asked == [
        (_SENDER, None, SlabLookup(65_536, 2)),
        (_SENDER, SlabPush(1, 0, big, 0.125), SlabLookup(0, 1)),
        (_SENDER, SlabPush(0, 1, big + 1, 0.0), None),
    ]


def test_a_failure_reaches_the_one_who_asked_and_the_next_request_is_served(keeper: str, steps: _Steps) -> None:
    bell = Doorbell(keeper, _SHARD, _SENDER)
    steps.open.clear()
    steps.failure = IdRangeError("table 'user': 1 ids outside")
    bad, good = bell.ring(SlabPush(0, 0, 1, 0.1), None), bell.ring(SlabPush(0, 1, 2, 0.1), None)
    steps.open.set()
    bell.wait(good)
    with pytest.raises(IdRangeError, match="table 'user'") as error:
        bell.wait(bad)
    assert any("Traceback" in note for note in error.value.__notes__)


@pytest.mark.parametrize(
    "failure", [ValueError("x" * 100_000), ValueError(threading.Lock())], ids=["long", "unpicklable"]
)
def test_a_failure_that_cannot_travel_comes_in_words(keeper: str, steps: _Steps, failure: Exception) -> None:
    bell = Doorbell(keeper, _SHARD, _SENDER)
    steps.failure = failure
    with pytest.raises(RuntimeError, match="ValueError: "):
        bell.wait(bell.ring(None, SlabLookup(0, 0)))
    bell.wait(bell.ring(None, SlabLookup(0, 0)))


def test_many_callers_one_of_which_dies_in_the_middle(keeper: str, steps: _Steps) -> None:
    bells = [Doorbell(keeper, _SHARD, _SENDER._replace(stream=stream)) for stream in range(20)]
    steps.open.clear()
    rung = [bell.ring(None, SlabLookup(0, stream)) for stream, bell in enumerate(bells)]
    del bells[7]  # hangs up with its request unanswered
    del rung[7]
    steps.open.set()
    for bell, number in zip(bells, rung, strict=True):
        bell.wait(number)
    assert {sender.stream for sender, _, _ in steps.asked} >= set(range(20)) - {7}


def test_a_caller_that_connects_and_says_nothing_keeps_nobody_waiting(keeper: str, steps: _Steps) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(doorbell_address(keeper, _SHARD))
        bell = Doorbell(keeper, _SHARD, _SENDER)
        bell.wait(bell.ring(None, SlabLookup(0, 0)))
    bell.wait(bell.ring(None, SlabLookup(0, 0)))


def test_nobody_listens(keeper: str) -> None:
    with pytest.raises(ShardUnavailableError, match=r"shard-3\.g2 is unavailable: its doorbell does not answer"):
        bell = Doorbell(keeper, _SHARD, _SENDER)
        bell.wait(bell.ring(None, SlabLookup(0, 0)))


def test_two_processes_cannot_answer_for_one_incarnation(keeper: str, steps: _Steps) -> None:
    with pytest.raises(OSError, match="in use"):
        DoorbellServer(keeper, _SHARD, steps)


def test_a_killed_shard_shows_to_all_that_wait(keeper: str) -> None:
    server = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\n"
            "from services.identity import Address\n"
            "from services.shard.doorbell_server import DoorbellServer\n"
            "def step(sender, push, lookup):\n"
            "    if push is not None: time.sleep(1000)\n"
            "DoorbellServer(sys.argv[1], Address('shard', 3, 2), step)\n"
            "print('ready', flush=True)\n"
            "time.sleep(1000)\n",
            keeper,
        ],
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == b"ready\n"
        bell, other = Doorbell(keeper, _SHARD, _SENDER), Doorbell(keeper, _SHARD, _SENDER)
        bell.wait(bell.ring(None, SlabLookup(0, 0)))
        stuck, behind = bell.ring(SlabPush(0, 0, 1, 0.1), None), other.ring(None, SlabLookup(0, 0))
        server.send_signal(signal.SIGKILL)
        for waiting, number in ((bell, stuck), (other, behind), (bell, bell.ring(None, SlabLookup(0, 0)))):
            with pytest.raises(ShardUnavailableError, match="its process has ended"):
                waiting.wait(number)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_a_caller_of_another_user_is_not_served(keeper: str, steps: _Steps) -> None:
    address = doorbell_address(keeper, _SHARD)
    code = (
        "import os, socket, sys\n"
        "os.setuid(65_534)\n"
        f"caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); caller.connect({address!r})\n"
        "try:\n"
        "    caller.send(bytes(32)); caller.send(bytes(36)); answer = caller.recv(100)\n"
        "except OSError:\n"
        "    answer = b''\n"
        "sys.exit(3 if answer == b'' else 4)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 3
    assert steps.asked == []
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with stranger:
        stranger.connect(address)
        stranger.send(b"not a hello")
        assert stranger.recv(10) == b""
    bell = Doorbell(keeper, _SHARD, _SENDER)
    bell.wait(bell.ring(None, SlabLookup(0, 0)))
