"""Creates role actors on chosen nodes, and ends them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from services.config import RunConfig
from services.coordinator.directory import Directory, Entry
from services.coordinator.nodes import Assignment
from services.identity import Address, Role
from services.keeper import Keeper
from services.memory.process import ProcessIdentity, kill_and_confirm
from services.shard.actor import EmbeddingShard
from services.sync_server.actor import SyncServer
from services.trainer.actor import Trainer

NAMESPACE = "penumbra"
_KILL_TIMEOUT_S = 15.0
_GRACE_S = 1.0
_ANSWER_S = 2.0
_SPARE_NODE_BYTES = 4 << 30
"""A spare's libraries take some 400 MB: none on nodes with less memory than this."""


class Launcher:
    """Starts actors for one run; each gets a fresh generation from the directory and its node's keeper."""

    def __init__(
        self, run_id: str, coordinator: Any, directory: Directory, config: RunConfig, board: str | None = None
    ) -> None:
        """``board``: the phase board, which faults aim by."""
        self.board = board
        self._run_id, self._coordinator, self._directory = run_id, coordinator, directory
        self._timings = (config.failure.heartbeat_s, config.failure.lease_s, board)
        self._cpus: dict[Role, float] = {
            "shard": config.shard_cpus,
            "spare": 0.0,
            "trainer": config.trainer_cpus,
            "sync_server": 0.0,
        }
        self._keepers: dict[str, tuple[str, Any]] = {}
        self._recalled = False

    def keeper(self, index: int, node_id: str) -> Entry:
        """The node's keeper; its socket name carries the run, so that several runs share a node.

        Its successor has the same name: nobody has to be told.
        """
        address = self._next_address("keeper", index)
        name = f"{self._run_id}/keeper-{index}"
        actor = self._options(Keeper, str(address), node_id, 0.0).remote(
            address, name, self._coordinator, *self._timings
        )
        self._keepers[node_id] = (name, actor)
        return self._enter(Entry(address, actor, node_id, name=self._actor_name(str(address))))

    def role(self, role: Role, index: int, node_id: str) -> Entry:
        """A shard, spare, trainer or sync server, idle until it is given its work."""
        kind = {"shard": EmbeddingShard, "spare": EmbeddingShard, "trainer": Trainer, "sync_server": SyncServer}[role]
        address = self._next_address(role, index)
        actor = self._options(kind, str(address), node_id, self._cpus[role]).remote(
            address, self.keeper_name(node_id), self._coordinator, *self._timings
        )
        return self._enter(Entry(address, actor, node_id, name=self._actor_name(str(address))))

    def recall(self) -> None:
        """After a restart: the keepers are those of the directory that live."""
        self._recalled = True
        for entry in self._directory.all("keeper"):
            if entry.actor is None:
                continue
            self._keepers[entry.node_id] = (f"{self._run_id}/keeper-{entry.address.index}", entry.actor)

    def keeper_name(self, node_id: str) -> str:
        """Socket name of a node's keeper."""
        return self._keepers[node_id][0]

    def shared_keeper(self, node_id: str, other_node_id: str) -> str | None:
        """The keeper two actors share, or ``None`` when they are on different nodes."""
        return self.keeper_name(node_id) if node_id == other_node_id else None

    def ensure_keeper(self, node_id: str) -> None:
        """Have a keeper on a node that so far needed none."""
        if node_id not in self._keepers:
            entry = self.keeper(1 + max(e.address.index for e in self._directory.all("keeper")), node_id)
            entry.process = ProcessIdentity(*ray.get(entry.actor.identity.remote(), timeout=_KILL_TIMEOUT_S))
            entry.ready = True

    def holds(self, entry: Entry) -> bool:
        """Whether the node's keeper has a shard's rows."""
        try:
            if entry.node_id not in self._keepers:
                return False
            call = self._keepers[entry.node_id][1].holds.remote(f"shard-{entry.address.index}/rows")
            return bool(ray.get(call, timeout=_KILL_TIMEOUT_S))
        except ray.exceptions.RayError:
            return False

    def answers(self, keeper: Entry) -> bool:
        """Whether a keeper's process is there; one that hangs is found by its heartbeats."""
        if keeper.actor is None:
            return False
        try:
            ray.get(keeper.actor.identity.remote(), timeout=_ANSWER_S)
        except ray.exceptions.RayActorError:
            return False
        except ray.exceptions.GetTimeoutError:
            return True
        return True

    def release_memory(self, node_id: str, prefix: str) -> None:
        """Let the node's keeper drop regions (slabs of a dead trainer)."""
        with contextlib.suppress(ray.exceptions.RayError, KeyError):
            ray.get(self._keepers[node_id][1].release.remote(prefix), timeout=_KILL_TIMEOUT_S)

    def confirm_dead(self, entry: Entry) -> bool:
        """Have the node's keeper kill the process and see it dead: only then may anybody adopt its memory.

        False when that could not be seen.

        A keeper that died or hangs cannot be asked, so a task on its node does it.
        """
        if entry.process is None:  # it died before its first heartbeat, so Ray saw it die, and it owned nothing yet
            return True
        with contextlib.suppress(ray.exceptions.RayError):
            if entry.address.role == "keeper" or entry.node_id not in self._keepers:
                where = NodeAffinitySchedulingStrategy(entry.node_id, soft=False)
                call = _kill_here.options(scheduling_strategy=where).remote(entry.process)
            else:
                call = self._keepers[entry.node_id][1].kill.remote(entry.process)
            return bool(ray.get(call, timeout=_KILL_TIMEOUT_S))
        return False

    def end_all(self) -> None:
        """End every actor of the run, keepers last; processes that do not react (stopped ones) are killed by pid."""
        entries = self._directory.all()
        workers = [entry for entry in entries if entry.address.role != "keeper" and entry.actor is not None]
        _end(workers)
        kills = [
            self._keepers[entry.node_id][1].kill.remote(entry.process, _GRACE_S)
            for entry in workers
            if entry.process is not None and entry.node_id in self._keepers
        ]
        if kills:
            ray.wait(kills, num_returns=len(kills), timeout=_KILL_TIMEOUT_S)
        _end([entry for entry in entries if entry.address.role == "keeper" and entry.actor is not None])
        for entry in entries:
            self._directory.remove(entry.address)

    def _options(self, kind: Any, name: str, node_id: str, cpus: float) -> Any:
        return kind.options(
            name=self._actor_name(name),
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=cpus,
            # Hard: a soft one may land elsewhere while a node that just joined is not known everywhere, away from its
            # keeper's memory. On a node that died since it was chosen, Ray fails the actor at once.
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )

    def _next_address(self, role: Role, index: int) -> Address:
        """One that no actor has: what the former coordinator started last the state store may never have heard of."""
        address = self._directory.next_address(role, index)
        while self._recalled and named_actor(self._actor_name(str(address))) is not None:
            address = self._directory.next_address(role, index)
        return address

    def _actor_name(self, name: str) -> str:
        return f"{self._run_id}/{name}"

    def _enter(self, entry: Entry) -> Entry:
        self._directory.put(entry)
        return entry


def named_actor(name: str) -> ray.actor.ActorHandle | None:
    """A living actor of any run."""
    try:
        return ray.get_actor(name, NAMESPACE)
    except ValueError:
        return None


def start_all(launcher: Launcher, assignment: Assignment, *, synchronized: bool, spare_shards: int) -> None:
    """Start every actor of the run at once: their imports, the long part, then overlap."""
    nodes = [node.node_id for node in assignment.nodes]
    for index in sorted({*assignment.shards, *assignment.trainers, assignment.sync_server}):
        launcher.keeper(index, nodes[index])
    for trainer_id, node in enumerate(assignment.trainers):  # they import most
        launcher.role("trainer", trainer_id, nodes[node])
    for shard_id, node in enumerate(assignment.shards):
        launcher.role("shard", shard_id, nodes[node])
    if synchronized:
        launcher.role("sync_server", 0, nodes[assignment.sync_server])
    for index, node in enumerate(sorted(set(assignment.shards)) * spare_shards):
        if assignment.nodes[node].memory_bytes >= _SPARE_NODE_BYTES:
            launcher.role("spare", index, nodes[node])


@ray.remote(num_cpus=0, max_retries=0)
def _kill_here(process: tuple[int, int]) -> bool:
    return kill_and_confirm(ProcessIdentity(*process))


def _end(entries: Sequence[Entry]) -> None:
    for entry in entries:
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(entry.actor)
