"""Killing by identity: the right process, also a stopped one, and never the next owner of its pid."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from services.memory.process import ProcessIdentity, identify, is_alive, kill_and_confirm, peak_rss_bytes


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_identity_of_this_process() -> None:
    own = identify()
    assert own.pid == os.getpid()
    assert own == identify(os.getpid())
    assert is_alive(own)


def test_no_process_has_no_identity() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    with pytest.raises(ProcessLookupError, match=str(process.pid)):
        identify(process.pid)


def test_a_command_name_with_spaces_and_brackets_is_understood(tmp_path: os.PathLike[str]) -> None:
    odd = os.path.join(tmp_path, "a) S 1 (b")
    os.symlink("/bin/sleep", odd)
    with subprocess.Popen([odd, "60"]) as process:
        identity = identify(process.pid)
        assert identity.start_ticks >= identify(1).start_ticks
        assert is_alive(identity)
        assert kill_and_confirm(identity)


def test_a_recycled_pid_is_another_process(sleeper: subprocess.Popen[bytes]) -> None:
    """The same pid with an earlier start: the process meant is gone, and the present one is left alone."""
    present = identify(sleeper.pid)
    former = ProcessIdentity(present.pid, present.start_ticks - 1)
    assert not is_alive(former)
    assert kill_and_confirm(former)
    assert sleeper.poll() is None
    assert is_alive(present)


def test_a_stopped_process_is_killed(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identify(sleeper.pid)
    os.kill(sleeper.pid, signal.SIGSTOP)
    assert kill_and_confirm(identity)
    assert not is_alive(identity)
    assert sleeper.wait() == -signal.SIGKILL


def test_a_zombie_counts_as_dead(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identify(sleeper.pid)
    assert kill_and_confirm(identity)  # nobody has waited for it yet
    assert os.path.exists(f"/proc/{sleeper.pid}/stat")
    assert not is_alive(identity)


def test_one_that_ends_within_its_grace_is_not_killed() -> None:
    with subprocess.Popen(["sleep", "0.2"]) as process:
        assert kill_and_confirm(identify(process.pid), grace_s=20.0)
    assert process.returncode == 0


def test_the_peak_of_resident_memory_counts_shared_mappings_and_stays() -> None:
    before = peak_rss_bytes()
    with mmap.mmap(-1, 2 * before) as shared:  # anonymous and shared, as a memfd is
        shared.write(bytes([1]) * len(shared))
    assert peak_rss_bytes() >= 2 * before
