"""From a coordinator to its records, and from them to the next coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

import ray

from services.coordinator.directory import Directory, Entry
from services.coordinator.launch import Launcher, named_actor
from services.coordinator.supervisor import Death
from services.state.coordinator_records import CoordinatorRecord
from services.state.quality_records import PlsEntry, PlsRecord, PolicyRecord
from services.state.record import Record
from services.state.run_records import RoleRecord
from services.state.work_records import SplitsRecord

if TYPE_CHECKING:
    from services.coordinator.failures import FailureHandler
    from services.coordinator.run_saves import RunSaves


class Recalled(NamedTuple):
    """What a coordinator left in the state store."""

    coordinator: CoordinatorRecord
    roles: Sequence[RoleRecord]
    splits: SplitsRecord
    pls: PlsRecord | None


def recall_directory(directory: Directory, launcher: Launcher, roles: Sequence[RoleRecord]) -> list[Death]:
    """Know the living actors again; returns those who are gone, or were not ready when the coordinator died.

    One that is known to be gone may have no successor yet: the coordinator died while it was at that.
    """
    lost = []
    nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    for role in sorted(roles, key=lambda one: one.role != "keeper"):
        entry, gone = None, role.state == "GONE"
        if not gone or (role.role != "spare" and (role.role != "keeper" or role.node_id in nodes)):
            actor = None if gone else named_actor(role.handle)
            entry = Entry(role.address, actor, role.node_id, role.process, name=role.handle)
            entry.ready = role.state == "ALIVE"
        directory.recall(role.address, entry)
        if entry is not None and (entry.actor is None or (not entry.ready and role.role != "spare")):
            lost.append(Death(entry, "it died while there was no coordinator", 0.0))
    launcher.recall()
    for death in lost:
        launcher.confirm_dead(death.entry)
    return lost


def coordinator_records(
    run_id: str, total_samples: int, started_samples: int, saves: RunSaves | None, handler: FailureHandler
) -> list[Record]:
    """What the next coordinator would need, beside roles and splits."""
    failures = tuple(failure.model_dump(mode="json") for failure in handler.failures)
    common = {
        "run_id": run_id,
        "training": True,
        "total_samples": total_samples,
        "started_samples": started_samples,
        "failures": failures,
        "rolled_back_samples": handler.rolled_back_samples,
        "rolling_back": handler.rolling_back,
    }
    if saves is None:
        return [CoordinatorRecord.model_validate(common)]
    saver = saves.saver
    planner, plan, settings = saver.planner, saver.planner.plan, saves.settings
    entries = tuple(
        PlsEntry(
            at_unix_s=0.0,
            at_samples=failure.at_samples,
            shard_ids=(failure.index,),
            pls=failure.pls or 0.0,
            effective=failure.pls_effective,
        )
        for failure in handler.failures
        if failure.mode == "partial" and failure.role == "shard"
    )
    return [
        CoordinatorRecord.model_validate(
            {
                **common,
                "useful_s": round(saves.useful_s, 1),
                "timeline": saver.timeline,
                "parent": saver.parent,
                "saves": planner.saves,
                "history": asdict(planner.history),
                "row_losing_failures": planner.row_losing_failures,
            }
        ),
        PlsRecord(
            total_samples=max(1, total_samples),
            total_accesses=max(1, total_samples),
            spent=planner.spent_pls,
            effective=planner.effective_pls,
            entries=entries,
        ),
        PolicyRecord(
            strategy=plan.strategy,
            mode=plan.mode,
            pls_budget=planner.budget,
            priority_fraction=settings.priority_fraction,
            interval_s=plan.interval_s,
            save_every_s=plan.save_every_s,
            full_every_s=plan.full_every_s if plan.full_every_s < float("inf") else None,
            interval_override_s=settings.interval_s,
            mtbf_s=settings.mtbf_s,
            reason=plan.reason,
        ),
    ]
