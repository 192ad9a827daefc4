"""Puts together what is done about deaths."""

from __future__ import annotations

from collections.abc import Callable

from services.config import RunConfig
from services.coordinator.books import Books
from services.coordinator.books_state import BooksState
from services.coordinator.directory import Directory
from services.coordinator.failures import FailureHandler
from services.coordinator.launch import Launcher
from services.coordinator.nodes import Assignment, budgets
from services.coordinator.places import Places
from services.coordinator.recovery import Recovery
from services.coordinator.rollback import Rollback
from services.coordinator.row_recovery import RowRecovery
from services.coordinator.run_saves import RunSaves
from services.coordinator.setup import PlacedTables, RunSetup
from services.coordinator.shard_counts import ShardCounts
from services.coordinator.supervisor import Supervisor
from services.identity import Address
from services.placement.memory import piece_bytes
from services.shard.restoring import RestoreOrder


def open_failure_handler(
    config: RunConfig,
    directory: Directory,
    launcher: Launcher,
    supervisor: Supervisor,
    setup: RunSetup,
    recovery: Recovery,
    saves: RunSaves | None,
    placed: PlacedTables,
    assignment: Assignment,
    shard_counts: ShardCounts,
    total_samples: int,
    books: Callable[[], Books | None],
    new_books: Callable[[BooksState | None], None],
    retire_books: Callable[[], None],
    remember: Callable[[], None],
    running: set[Address],
    event: Callable[..., None],
    say: Callable[[str], None],
) -> FailureHandler:
    """Without ``saves`` rows that are gone end the run; for the others see ``FailureHandler``."""
    nodes = [node.node_id for node in assignment.nodes]
    sizes = [sum(piece_bytes(piece, config.embedding) for piece in own) for own in placed.pieces]
    places = Places(
        directory,
        launcher,
        dict(zip(nodes, budgets(assignment, config.cluster.memory_budget_bytes), strict=True)),
        sizes.__getitem__,
    )
    rows = rollback = None
    if saves is not None:
        store, saver = saves.store, saves.saver
        rows = RowRecovery(
            recovery,
            launcher,
            setup,
            saver,
            RestoreOrder(store.url, store.run),
            total_samples,
            shard_counts.pending,
            shard_counts.accesses,
            shard_counts.restored,
            event,
            say,
        )
        rollback = Rollback(directory, launcher, supervisor, setup, store, saver, rows, places.for_shard)
    return FailureHandler(
        directory,
        launcher,
        recovery,
        places,
        saves.saver if saves else None,
        rows,
        rollback,
        config.failure.max_failures,
        config.failure.warm,
        total_samples,
        books,
        new_books,
        retire_books,
        remember,
        running,
        event,
        say,
    )
