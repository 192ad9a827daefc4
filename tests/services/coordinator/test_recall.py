"""What a coordinator that was started again makes of the roles that the former one knew."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest
import ray

from services.config import RunConfig
from services.coordinator.directory import Directory
from services.coordinator.launch import Launcher
from services.coordinator.recall import recall_directory
from services.identity import Address, Role
from services.memory.process import ProcessIdentity, identify, is_alive
from services.state.run_records import RoleRecord
from tests.services.ray_parts import private_ray

pytestmark = pytest.mark.timeout(60)

ROLES: tuple[Role, ...] = ("shard", "trainer", "sync_server")


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    with private_ray():
        yield ray.get_runtime_context().get_node_id()


def gone(role: Role, index: int, node_id: str, process: ProcessIdentity | None = None) -> RoleRecord:
    return RoleRecord(
        role=role, index=index, generation=3, state="GONE", node_id=node_id, handle="nobody", process=process
    )


def recalled(*roles: RoleRecord) -> tuple[Directory, list[Address]]:
    directory = Directory()
    launcher = Launcher(f"recall-{uuid.uuid4().hex[:8]}", None, directory, RunConfig())
    return directory, [death.entry.address for death in recall_directory(directory, launcher, roles)]


def test_who_died_and_has_no_successor_yet_is_replaced(node: str) -> None:
    """The former coordinator died while it was at that: else the trainers would wait for that shard for ever."""
    directory, lost = recalled(*(gone(role, 0, node) for role in ROLES), gone("spare", 1, node))
    assert set(lost) == {Address(role, 0, 3) for role in ROLES}
    assert all(directory.knows(address) for address in lost)
    assert directory.next_address("spare", 1).generation == 4, "nobody depends on a spare, its number is taken"


def test_a_keeper_is_missed_only_where_its_node_lives(node: str) -> None:
    assert recalled(gone("keeper", 0, node), gone("keeper", 1, "f" * 56))[1] == [Address("keeper", 0, 3)]


def test_nobody_who_hangs_comes_back_beside_a_successor(node: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        process = identify(child.pid)
        recalled(gone("shard", 0, node, process))  # no keeper is there to be asked
        assert not is_alive(process)
    finally:
        child.kill()
        child.wait()


def test_the_number_of_an_actor_that_the_state_store_never_heard_of_is_not_given_twice(node: str) -> None:
    """The former coordinator started it and died; it leaves with its lease, and until then has its name."""
    run_id, directory = f"recall-{uuid.uuid4().hex[:8]}", Directory()
    former = Directory()
    former.recall(Address("sync_server", 0, 3), None)
    before = Launcher(run_id, None, former, RunConfig())
    before.keeper(0, node)
    unknown = before.role("sync_server", 0, node)
    try:
        launcher = Launcher(run_id, None, directory, RunConfig())
        recall_directory(directory, launcher, [gone("sync_server", 0, node)])
        launcher.keeper(0, node)
        found = [launcher.role("sync_server", 0, node)]
        assert (unknown.address.generation, found[0].address.generation) == (4, 5)
    finally:
        for entry in [unknown, *former.all("keeper"), *directory.all()]:
            if entry.actor is not None:
                ray.kill(entry.actor)
