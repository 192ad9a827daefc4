"""A process that is on the phase board and goes through the phases of a shard (or takes poison), until it is killed.

``python role_process.py BOARD ROLE INDEX GENERATION LOG``: every pass is lookup 1 ms, update 2 ms, idle 1 ms; LOG gets
one byte for each poisoned batch.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from services.faults.phase_board import open_phase_board
from services.faults.phases import Phase

ROOT = Path(__file__).parents[3]


class Roles:
    """Starts role processes and ends them all."""

    def __init__(self, board: Path) -> None:
        self.board = board
        self.poison = board.with_name("poison")
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, role: str, index: int, generation: int = 1) -> subprocess.Popen[str]:
        command = [sys.executable, "-S", __file__, str(self.board), role, str(index), str(generation), str(self.poison)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(ROOT)}, start_new_session=True
        )
        self.processes.append(process)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def state(pid: int) -> str:
    """As in /proc: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def main(board: str, role: str, index: str, generation: str, log: str) -> None:
    phases = open_phase_board(board, role, int(index), int(generation))  # type: ignore[arg-type]
    print("ready", flush=True)
    while True:
        phases.enter(Phase.LOOKUP)
        time.sleep(0.001)
        phases.enter(Phase.UPDATE)
        time.sleep(0.002)
        phases.enter(Phase.IDLE)
        if phases.poison_due():
            with open(log, "ab") as file:
                file.write(b"x")
        time.sleep(0.001)


if __name__ == "__main__":
    main(*sys.argv[1:])
