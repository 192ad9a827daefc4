from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from services.faults.board_file import HEADER_BYTES, SLOT_BYTES, BoardError, BoardFile, create_board
from services.faults.board_reader import BoardReader, Slot
from services.faults.phase_board import NullPhaseBoard, PhaseBoard, open_phase_board
from services.faults.phases import Phase
from services.faults.victim import Victim
from services.memory.process import identify
from tests.services.faults.role_process import Roles

SHARD_1 = Slot("shard", 1)


def board_of(path: Path) -> BoardReader:
    create_board(path, {"shard": 2, "trainer": 1})
    return BoardReader(path)


def test_what_the_owner_enters_is_seen_and_counted(tmp_path: Path) -> None:
    reader = board_of(tmp_path / "board")
    assert (tmp_path / "board").stat().st_size == HEADER_BYTES + 3 * SLOT_BYTES
    assert reader.occupant(SHARD_1) is None
    owner = open_phase_board(tmp_path / "board", "shard", 1, 7)
    occupant = reader.occupant(SHARD_1)
    assert occupant is not None
    assert occupant == (identify(), 7, Phase.STARTUP)
    for _ in range(3):
        owner.enter(Phase.UPDATE)
        owner.enter(Phase.IDLE)
    owner.enter(Phase.UPDATE)
    assert reader.is_in(SHARD_1, Phase.UPDATE) and not reader.is_in(SHARD_1, Phase.IDLE)
    assert [reader.entries(SHARD_1, phase) for phase in Phase] == [3, 0, 4, 0, 0, 0, 1]
    assert [reader.occupant(slot) for slot in reader.slots if slot != SHARD_1] == [None, None]
    owner.leave()
    assert reader.occupant(SHARD_1) is None


def test_counts_go_on_over_incarnations_and_wrap(tmp_path: Path) -> None:
    path = tmp_path / "board"
    reader = board_of(path)
    BoardFile(path).words("shard", 1)[8 + Phase.UPDATE] = 0xFFFFFFFF
    since = reader.entries(SHARD_1, Phase.UPDATE)
    for generation in (1, 2):
        open_phase_board(path, "shard", 1, generation).enter(Phase.UPDATE)
    assert reader.entries(SHARD_1, Phase.UPDATE) == 1
    assert reader.entries(SHARD_1, Phase.UPDATE, since) == 2


@pytest.mark.parametrize("path", [None, "absent"])
def test_without_a_board_nothing_happens(tmp_path: Path, path: str | None) -> None:
    null = open_phase_board(path and tmp_path / path, "shard", 0, 1)
    assert isinstance(null, NullPhaseBoard)
    null.enter(Phase.UPDATE)
    assert not null.poison_due()
    assert list(tmp_path.iterdir()) == []


def test_another_machines_board_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "board"
    create_board(path, {"shard": 1})
    before = path.read_bytes().replace(Path("/proc/sys/kernel/random/boot_id").read_bytes().strip(), b"x" * 36)
    path.write_bytes(before)
    open_phase_board(path, "shard", 0, 1).enter(Phase.UPDATE)
    assert path.read_bytes() == before
    with pytest.raises(BoardError, match="another machine"):
        BoardReader(path)


def test_a_restarted_coordinator_keeps_the_board(tmp_path: Path) -> None:
    path = tmp_path / "board"
    reader = board_of(path)
    owner = open_phase_board(path, "shard", 0, 1)
    create_board(path, {"shard": 2, "trainer": 1})
    owner.enter(Phase.RESTORE)
    assert reader.is_in(Slot("shard", 0), Phase.RESTORE)
    with pytest.raises(BoardError, match="wanted are"):
        create_board(path, {"shard": 3})


def test_wrong_files_and_slots_are_named(tmp_path: Path) -> None:
    path = tmp_path / "board"
    board_of(path)
    with pytest.raises(BoardError, match=r"no slot for shard-2; it was created for 2 × shard, 1 × trainer"):
        open_phase_board(path, "shard", 2, 1)
    with pytest.raises(BoardError, match="no such role: worker"):
        create_board(tmp_path / "other", {"worker": 1})  # type: ignore[dict-item]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BoardError, match="its header says"):
        BoardReader(path)
    path.write_bytes(b"something else")
    with pytest.raises(BoardError, match="no phase board"):
        open_phase_board(path, "shard", 0, 1)


def test_every_poison_request_is_taken_once_by_one_of_many_threads(tmp_path: Path) -> None:
    reader = board_of(tmp_path / "board")
    slot = Slot("trainer", 0)
    owner = open_phase_board(tmp_path / "board", "trainer", 0, 1)
    assert not owner.poison_due()
    taken: list[int] = []

    def batches() -> None:
        for _ in range(5000):
            if owner.poison_due():
                taken.append(1)

    threads = [threading.Thread(target=batches) for _ in range(4)]
    asked = [reader.ask_poison(slot) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 50 and reader.poison_taken(slot, asked[-1])


def test_withdrawn_poison_is_not_taken_and_a_late_one_is_known(tmp_path: Path) -> None:
    reader = board_of(tmp_path / "board")
    slot = Slot("trainer", 0)
    owner = open_phase_board(tmp_path / "board", "trainer", 0, 1)
    assert reader.withdraw_poison(slot, reader.ask_poison(slot))
    assert not owner.poison_due()
    asked = reader.ask_poison(slot)
    assert owner.poison_due()
    assert not reader.withdraw_poison(slot, asked)
    assert not owner.poison_due()
    reader.ask_poison(slot)
    assert owner.poison_due() and not owner.poison_due()
    reader.ask_poison(slot)
    assert not open_phase_board(tmp_path / "board", "trainer", 0, 2).poison_due(), "meant for the one before"


def test_readers_never_see_a_pid_with_anothers_start_time(tmp_path: Path) -> None:
    """Two processes take one slot in turns as fast as they can while it is read."""
    reader = board_of(tmp_path / "board")
    child = os.fork()
    if child == 0:
        try:
            while True:
                open_phase_board(tmp_path / "board", "shard", 0, 2)
        finally:
            os._exit(1)
    known = {identify(), identify(child)}
    seen = set()
    try:
        deadline = time.monotonic() + 20
        rounds = 0
        while rounds < 3000 or not known <= seen:
            rounds += 1
            assert time.monotonic() < deadline, "the other process was never seen"
            mine = open_phase_board(tmp_path / "board", "shard", 0, 1)
            assert isinstance(mine, PhaseBoard)
            for _ in range(10):
                occupant = reader.occupant(Slot("shard", 0))
                if occupant is not None:
                    seen.add(occupant.process)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    # Two owners at once is against the rules: what mixes their words is refused before any signal is sent.
    for process in seen - known:
        with pytest.raises(ProcessLookupError):
            Victim(process)


def test_the_board_outlives_a_killed_owner(run_dir: Path, roles: Roles) -> None:
    process = roles.start("shard", 0)
    reader = BoardReader(roles.board)
    process.kill()
    process.wait()
    occupant = reader.occupant(Slot("shard", 0))
    assert occupant is not None and occupant.process.pid == process.pid
    roles.start("shard", 0, generation=2)
    successor = reader.occupant(Slot("shard", 0))
    assert successor is not None and successor.generation == 2
