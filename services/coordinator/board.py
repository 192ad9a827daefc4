"""The run's phase board: where its processes say what they are doing, for faults on purpose."""

from __future__ import annotations

from services.coordinator.nodes import Assignment
from services.faults.board_file import create_board
from services.faults.run_files import fault_files

_SPARES_A_NODE = 16
_LATER_KEEPERS = 16
"""On nodes that a run uses only once others died."""


def make_board(run_directory: str, assignment: Assignment, *, again: bool) -> str | None:
    """Its path; ``None`` where it cannot be made: training does not need it.

    ``again``: the coordinator died, and its processes have the board that is there.
    """
    nodes = len(assignment.nodes)
    path = fault_files(run_directory).board
    try:
        if not again:
            path.unlink(missing_ok=True)
        create_board(
            path,
            {
                "coordinator": 1,
                "state_store": 1,
                "keeper": nodes + _LATER_KEEPERS,
                "shard": len(assignment.shards),
                "spare": _SPARES_A_NODE * nodes,
                "trainer": len(assignment.trainers),
                "sync_server": 1,
            },
        )
    except OSError:
        return None
    return str(path)
