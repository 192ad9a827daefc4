"""The guardian: a process that undoes what its injector still holds when that ends, however it ends.

It reads one JSON object a line from stdin: ``{"hold": KEY, …}`` says how to undo something that is about to be done,
``{"release": KEY}`` that it was undone. When the pipe ends (the injector closed it, or was killed) the rest is undone
and written to the log. It imports nothing but the standard library, so that it is there at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from services.memory.process import ProcessIdentity, is_alive


def held_at_end(lines: Iterable[str]) -> list[dict[str, Any]]:
    """What was held and not released, in the order in which it was held."""
    held: dict[str, dict[str, Any]] = {}
    for line in lines:
        try:
            message = json.loads(line)
        except ValueError:  # the injector was killed in the middle of a line: it had not done the thing yet
            continue
        if "hold" in message:
            held[message["hold"]] = message
        else:
            held.pop(message["release"], None)
    return list(held.values())


def undo(what: dict[str, Any]) -> bool:
    """Continue a process, or turn all storage faults off; False when nothing had to be done."""
    if "control" in what:
        try:
            os.unlink(what["control"])
        except FileNotFoundError:
            return False
        return True
    process = ProcessIdentity(what["pid"], what["start_ticks"])
    if not is_alive(process):
        return False
    was_stopped = _state(process.pid) == "T"
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process.pid, signal.SIGCONT)  # also where a stop is only on its way
    return was_stopped


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def main(log_path: str) -> None:
    """Run until stdin ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # whoever ends the injector by these must not end its guardian
    for what in held_at_end(sys.stdin):
        if undo(what):
            record = {"kind": "released", "time": time.time(), "by": "guardian", **what}
            with open(log_path, "a", encoding="utf-8") as log:
                log.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
