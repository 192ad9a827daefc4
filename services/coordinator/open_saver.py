"""Opens a run's saver."""

from __future__ import annotations

from collections.abc import Callable

from checkpoint.chain import Choice
from checkpoint.manifest import TableSpec
from checkpoint.store import CheckpointStore
from checkpoint.undamaged import choose_undamaged
from services.config import RunConfig
from services.coordinator.directory import Directory
from services.coordinator.nodes import Assignment
from services.coordinator.run_state import RunState
from services.coordinator.save_planner import SavePlanner
from services.coordinator.save_round import Saved, SaveRound
from services.coordinator.saver import Saver
from services.coordinator.setup import PlacedTables
from services.faults.phases import Phase


def newest_consistent(store: CheckpointStore) -> Choice:
    """The save that a whole job goes on from; all of it is read, since no shard may take another one than the rest.

    Raises:
        SaveNotFound: there is none that is undamaged and of one instant; says why each was passed over.
    """
    return choose_undamaged(store, exact=True)


def open_saver(
    config: RunConfig,
    store: CheckpointStore,
    timeline: int,
    placed: PlacedTables,
    assignment: Assignment,
    directory: Directory,
    state: Callable[[], RunState],
    progress: Callable[[], tuple[float, int, int]],
    training: Callable[[], bool],
    event: Callable[..., None],
    say: Callable[[str], None],
    saved: Callable[[Saved], None],
    phase: Callable[[Phase], None],
) -> Saver:
    """Nothing is saved before it is started."""
    embedding = config.embedding
    tables = {
        table: TableSpec(
            rows=rows, dim=placed.dims[table], dtype=embedding.weights_precision, optimizer=embedding.optimizer
        )
        for table, rows in placed.rows.items()
    }
    planner = SavePlanner(config, placed.pieces, assignment.shards_per_node)
    owners = [shard_id for shard_id, own in enumerate(placed.pieces) if own]
    round_ = SaveRound(config.checkpoint, directory, store, tables, owners, state, phase)
    return Saver(config, store, timeline, planner, round_, progress, training, event, say, saved)
