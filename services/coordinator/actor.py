"""The coordinator as a Ray actor.

Light to import, since every actor of the run holds its handle; it starts the role actors before its own heavy imports,
so that all of them import at the same time.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Literal

import ray

from services.config import RunConfig
from services.coordinator.board import make_board
from services.coordinator.directory import Directory
from services.coordinator.launch import Launcher, start_all
from services.coordinator.nodes import Assignment
from services.identity import Address
from services.memory.process import ProcessIdentity, identify
from services.progress import Progress

if TYPE_CHECKING:
    from services.coordinator.run_control import RunControl
    from services.transport.shard_client import ShardTarget
    from trainer.data.block import RejectedLine
    from trainer.data.split import Lease
    from trainer.ledger import Report

_UNUSED_S = 60.0


@ray.remote(max_restarts=-1, num_cpus=0, max_concurrency=32)
class Coordinator:
    """One run. After a crash Ray restarts it empty: actors it no longer knows then leave by themselves."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._directory = Directory()
        self._control: RunControl | None = None
        self._given_run, self._ready = threading.Event(), threading.Event()
        self._this = ray.get_runtime_context().current_actor
        threading.Thread(target=self._leave_unless_used, name="unused", daemon=True).start()

    def run(
        self,
        config: RunConfig,
        assignment: Assignment,
        run_id: str,
        run_directory: str,
        started_s: float,
        resume: bool = False,
        again: bool = False,
    ) -> str:
        """The whole run; returns its summary as JSON, also on failure.

        ``started_s``: the driver's clock then. ``resume``: go on from the newest consistent save.
        ``again``: the coordinator died and was started again; what lives of the run goes on.
        """
        self._given_run.set()
        board = make_board(run_directory, assignment, again=again)
        launcher = Launcher(run_id, self._this, self._directory, config, board)
        if not again:
            with self._lock:
                start_all(
                    launcher, assignment, synchronized=config.synchronized, spare_shards=config.cluster.spare_shards
                )
            self._ready.set()

        from services.coordinator.run_control import RunControl

        control = RunControl(
            config,
            run_id,
            run_directory,
            started_s,
            self._directory,
            launcher,
            assignment,
            self._lock,
            resume,
            self._ready.set if again else None,
        )
        self._control = control
        summary = control.run()
        if control.driver_gone:  # nobody else will end this actor
            ray.kill(self._this, no_restart=True)
        return summary

    def identity(self) -> tuple[int, int]:
        """This process."""
        return identify()

    def driver_alive(self) -> None:
        """A sign of life of the command that started the run: without one for ``failure.lease_s`` it is cancelled."""
        if self._control is not None:
            self._control.driver_alive()

    def progress(self) -> Progress:
        """A snapshot for the live display."""
        control = self._control
        return control.progress() if control else Progress(state="STARTING", stage="starting actors")

    def cancel(self, why: str) -> bool:
        """Stop cleanly; False when the run is not far enough to be told, so ask again."""
        if self._control is None:
            return False
        self._control.cancel(why)
        return True

    def heartbeat(self, address: Address, process: tuple[int, int], payload: dict[str, Any]) -> bool:
        """A sign of life; False tells a replaced (or unknown) incarnation to leave."""
        address = Address(*address)
        if not self._ready.is_set():  # started again, and not told yet who is who
            return True
        with self._lock:
            known = self._directory.heartbeat(address, ProcessIdentity(*process), time.monotonic())
            if known and self._control is not None:
                self._control.alive(address, payload)
        return known

    def lease(self, trainer: Address) -> Lease | Literal["wait", "done"]:
        """The next split for a trainer."""
        return self._control.lease(Address(*trainer)) if self._control else "wait"

    def report(
        self, trainer: Address, number: int, report: Report, rejected: list[RejectedLine]
    ) -> tuple[int, int, int]:
        """What a trainer did since its last report, numbered; the answer is a ``books.Receipt``."""
        return self._control.report(Address(*trainer), number, report, rejected) if self._control else (0, -1, -1)

    def successor(self, trainer: Address, lost: Address) -> ShardTarget | None:
        """The younger incarnation of a lost shard, once it serves; ``None`` means: ask again."""
        return self._control.successor(Address(*trainer), Address(*lost)) if self._control else None

    def sync_server(self, trainer: Address) -> Any | None:
        """The living sync server, once it has its weights."""
        return self._control.sync_server(Address(*trainer)) if self._control else None

    def _leave_unless_used(self) -> None:
        """Ends a coordinator that nobody gives a run: its driver died, or Ray restarted it after a crash."""
        if not self._given_run.wait(_UNUSED_S):
            ray.kill(self._this, no_restart=True)
