"""What ``penumbra train`` does: start a coordinator, watch it, and leave nothing behind."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from services.config import RunConfig
from services.config_file import dump_config
from services.coordinator.nodes import Assignment, ResourceError, alive_nodes, assign
from services.environment import broken_environment
from services.memory.process import ProcessIdentity, kill_and_confirm
from services.paths import absolute
from services.placement_report import PlacementReport
from services.progress import Progress
from services.ray_session import ray_session
from services.run_directory import Resume, run_directory
from services.summary import Samples, Summary

_POLL_S = 0.5
_ALIVE_S = 1.0
_CALL_TIMEOUT_S = 10.0
_END_S = 60.0
_RELEASE_S = 5.0
_BACK_S = 30.0
_MISSED = 3
"""So many calls in a row that are not answered within ``failure.heartbeat_timeout_s``: the coordinator hangs."""
_COORDINATORS = 100
"""So often a coordinator may die and be started again."""


def run(
    config: RunConfig, on_progress: Callable[[Progress], None] = lambda _: None, *, resume: Resume = "auto"
) -> Summary:
    """Run a whole training; returns its summary, also when it failed or was cancelled.

    A run of the same name that did not succeed is gone on with, from its newest consistent save. ``resume``: whether
    it is an error when there is none.

    Ctrl-C and SIGTERM stop it cleanly (state CANCELLED); a second Ctrl-C does not wait for that.
    """
    started_s = time.time()
    config = absolute(config)
    interrupted = threading.Event()
    with run_directory(config, resume) as (directory, going_on):
        (directory / "config.yaml").write_text(dump_config(config), encoding="utf-8")
        on_progress(Progress(state="STARTING", stage="starting Ray"))
        # Twice: Ray, too, installs a handler for SIGTERM when it starts.
        with _interrupts(interrupted), ray_session(config), _interrupts(interrupted):
            try:
                summary = _supervise(config, directory, started_s, on_progress, interrupted, going_on)
            except ResourceError as error:
                summary = Summary(run=config.name, state="FAILED", error=str(error), wall_s=time.time() - started_s)
        if not (directory / "summary.json").exists():  # the coordinator could not write it
            try:
                summary.write(directory / "summary.json")
            except OSError as error:  # the caller prints it
                print(f"penumbra: {directory / 'summary.json'} cannot be written: {error}", file=sys.stderr)
        return summary


def plan(config: RunConfig) -> PlacementReport:
    """Where every table would go, on this machine or the cluster the settings name, and when it would be saved.

    Nothing is started.
    """
    from services.coordinator.data import prepare_data
    from services.coordinator.setup import place_tables
    from services.plan_saves import plan_saves

    config = absolute(config)
    with ray_session(config):
        placed = place_tables(config, prepare_data(config, None).encoders.rows, _assignment(config))
    saves = plan_saves(config, placed.pieces, [len(node.shard_ids) for node in placed.report.nodes])
    return placed.report.model_copy(update={"saves": saves})


def _assignment(config: RunConfig) -> Assignment:
    """Where the roles go; waits a little for CPUs that actors of a run which just ended are giving back."""
    import ray

    def place(free: dict[str, dict[str, float]]) -> Assignment:
        return assign(
            alive_nodes(ray.nodes(), free),
            first=ray.get_runtime_context().get_node_id(),
            shards=config.cluster.shards,
            trainers=config.cluster.trainers,
            shard_cpus=config.shard_cpus,
            trainer_cpus=config.trainer_cpus,
        )

    deadline = time.monotonic() + _RELEASE_S
    while True:
        try:
            return place(ray._private.state.available_resources_per_node())
        except ResourceError:
            if time.monotonic() > deadline:
                raise
            place({})  # raises at once when even the idle cluster is too small
        time.sleep(_POLL_S)


def _supervise(
    config: RunConfig,
    directory: Path,
    started_s: float,
    on_progress: Callable[[Progress], None],
    interrupted: threading.Event,
    going_on: bool,
) -> Summary:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from services.coordinator.actor import Coordinator
    from services.coordinator.launch import NAMESPACE

    assignment = _assignment(config)
    node_id = ray.get_runtime_context().get_node_id()
    run_id = f"{config.name}-{uuid.uuid4().hex[:8]}"
    kind: Any = Coordinator  # the run directory is on this machine, so the coordinator is too
    coordinator = kind.options(
        name=f"{run_id}/coordinator",
        namespace=NAMESPACE,
        lifetime="detached",
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
    ).remote()
    latest = Progress(state="STARTING", stage="starting actors")

    def note(progress: Progress) -> None:
        nonlocal latest
        latest = progress
        on_progress(progress)

    try:
        arguments = (config, assignment, run_id, str(directory), started_s, going_on)
        call = coordinator.run.remote(*arguments)
        with _sign_of_life(coordinator):
            for again in range(_COORDINATORS):
                try:
                    return Summary.model_validate_json(_wait(config, coordinator, call, note, interrupted))
                except ray.exceptions.RayActorError:
                    if again == _COORDINATORS - 1 or not _back(coordinator, interrupted):
                        raise
                    call = coordinator.run.remote(*arguments, again=True)
        raise AssertionError("unreachable")
    except ray.exceptions.RayError as error:
        return Summary(
            run=config.name,
            state="CANCELLED" if interrupted.is_set() else "FAILED",
            error=_without_summary(error),
            samples=Samples(trained=latest.samples, repeated=None),
            wall_s=time.time() - started_s,
        )
    finally:
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(coordinator, no_restart=True)


def _back(coordinator: Any, interrupted: threading.Event) -> bool:
    """Whether Ray has started a coordinator again that died; its actors did not wait for it."""
    import ray

    deadline = time.monotonic() + _BACK_S
    while time.monotonic() < deadline and not interrupted.is_set():
        try:
            ray.get(coordinator.progress.remote(), timeout=_CALL_TIMEOUT_S)
            return True
        except ray.exceptions.ActorDiedError:  # for good: its node died, or it was ended
            return False
        except ray.exceptions.RayError:
            time.sleep(_POLL_S)
    return False


def _without_summary(error: Exception) -> str:
    """Why the coordinator gave no summary."""
    import ray

    if isinstance(error, ray.exceptions.GetTimeoutError):
        return str(error)
    if isinstance(error, ray.exceptions.RayActorError):
        return f"the coordinator died ({type(error).__name__}); its actors leave by themselves"
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    return broken_environment(cause) or f"the coordinator failed: {error}"


def _wait(
    config: RunConfig,
    coordinator: Any,
    call: Any,
    on_progress: Callable[[Progress], None],
    interrupted: threading.Event,
) -> str:
    import ray

    cancelled_s: float | None = None
    answer_s = config.failure.heartbeat_timeout_s / _MISSED
    process: ProcessIdentity | None = None
    missed = 0
    while True:
        done, _ = ray.wait([call], timeout=_POLL_S)
        if done:
            text: str = ray.get(call)
            return text
        if interrupted.is_set():
            cancelled_s = cancelled_s or time.monotonic()
            with contextlib.suppress(ray.exceptions.GetTimeoutError):
                ray.get(coordinator.cancel.remote("interrupted"), timeout=_CALL_TIMEOUT_S)
        if cancelled_s is not None and time.monotonic() - cancelled_s > _END_S:
            raise ray.exceptions.GetTimeoutError(f"the coordinator did not stop within {_END_S:g} s")
        timeout_s = answer_s if process is not None else _CALL_TIMEOUT_S
        try:  # a dead one raises from call
            progress = ray.get(coordinator.progress.remote(), timeout=timeout_s)
            on_progress(progress)
            if process is None and progress.state == "RUNNING":  # before, nobody could go on where it died
                process = ProcessIdentity(*ray.get(coordinator.identity.remote(), timeout=timeout_s))
            missed = 0
        except ray.exceptions.GetTimeoutError:  # busy, or it hangs
            missed += 1
            if missed >= _MISSED and process is not None:
                kill_and_confirm(process)  # it runs on this machine; a later SIGCONT must not make two of it
                process = None


@contextlib.contextmanager
def _sign_of_life(coordinator: Any) -> Iterator[None]:
    """Tells the coordinator, from a thread of its own, that the command lives: a blocked terminal is no death."""
    import ray

    done = threading.Event()

    def tell() -> None:
        while not done.wait(_ALIVE_S):
            with contextlib.suppress(ray.exceptions.RayError):  # a dead coordinator is noticed by the one who waits
                ray.get(coordinator.driver_alive.remote(), timeout=_CALL_TIMEOUT_S)

    thread = threading.Thread(target=tell, name="driver-alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=_CALL_TIMEOUT_S)


@contextlib.contextmanager
def _interrupts(event: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM set ``event``; a second one raises KeyboardInterrupt as usual."""
    if threading.current_thread() is not threading.main_thread():  # signals belong to the main thread
        yield
        return

    def note(_number: int, _frame: Any) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
