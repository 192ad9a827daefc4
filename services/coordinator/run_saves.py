"""A run's saves: where it starts from, what it saves while it goes, and the last one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from checkpoint.checkpoint_config import CheckpointConfig
from checkpoint.store import CheckpointStore
from services.config import RunConfig
from services.coordinator.books import Books
from services.coordinator.data import readers_of
from services.coordinator.directory import Directory
from services.coordinator.failures import RunFailedError
from services.coordinator.go_on import GoOn
from services.coordinator.nodes import Assignment
from services.coordinator.open_saver import open_saver
from services.coordinator.run_state import RunState
from services.coordinator.save_round import Saved
from services.coordinator.setup import PlacedTables
from services.faults.phases import Phase
from services.state.coordinator_records import CoordinatorRecord
from services.state.quality_records import PlsRecord
from services.summary import Pls
from services.trainer.dense_start import SavedAt

_AT_END_S, _FIRST_PAUSE_S = 120.0, 1.0
"""The storage may be away for a minute when all is trained."""


class RunSaves:
    """The store and its saver, and what the run started from."""

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        placed: PlacedTables,
        assignment: Assignment,
        actors: Directory,
        books: Callable[[], Books | None],
        total_samples: Callable[[], int],
        training: Callable[[], bool],
        event: Callable[..., None],
        say: Callable[[str], None],
        saved: Callable[[Saved], None],
        store: CheckpointStore,
        start_from: GoOn | None,
        phase: Callable[[Phase], None],
    ) -> None:
        self._config, self._directory, self._books, self._total_samples = config, directory, books, total_samples
        self._event, self._say = event, say
        self.store = store
        self._trained = 0
        self._useful_base_s, self._since_s = 0.0, 0.0
        self.start_from = start_from
        self._readers = start_from.state.readers if start_from else readers_of(config)
        if start_from is not None:
            self._useful_base_s = start_from.state.useful_s
        timeline = start_from.timeline if start_from else 0
        self.saver = open_saver(
            config,
            self.store,
            timeline,
            placed,
            assignment,
            actors,
            self._state,
            self._progress,
            training,
            event,
            say,
            saved,
            phase,
        )
        if start_from is not None:
            state = start_from.state
            self.saver.planner.resumed(state.spent_pls, state.effective_pls, state.row_losing_failures)
            self.saver.rolled_back(start_from.save.save_id, timeline, state.samples)

    @property
    def started_samples(self) -> int:
        """Trained before this process of the run began."""
        return self.start_from.state.samples if self.start_from else 0

    @property
    def pls(self) -> Pls:
        """The quality budget."""
        planner = self.saver.planner
        return Pls(budget=planner.budget, spent=planner.spent_pls, effective=planner.effective_pls)

    @property
    def useful_s(self) -> float:
        """Seconds trained."""
        return self._progress()[0]

    @property
    def settings(self) -> CheckpointConfig:
        """``checkpoint.*``."""
        return self._config.checkpoint

    def recall(self, record: CoordinatorRecord, pls: PlsRecord | None) -> None:
        """After a restart of the coordinator: what was saved and spent before."""
        self._useful_base_s = record.useful_s
        self.saver.recall(record.parent, record.timeline)
        self.saver.planner.recall(record.saves, record.history)
        if pls is not None:
            self.saver.planner.resumed(pls.spent, pls.effective, record.row_losing_failures)

    def start(self) -> None:
        """Training begins now, for the first time."""
        self._since_s = time.monotonic()
        self.saver.start()

    def newest(self) -> SavedAt | None:
        """For a trainer that finds nobody to copy from."""
        saves = self.store.list()
        return SavedAt(self.store.url, self.store.run, saves[-1].save_id) if saves else None

    def at_end(self, why: str, mend: Callable[[float], None] | None = None) -> None:
        """The last save, from which the run can be exported or gone on with.

        ``mend``: replaces who died, for so many seconds, before it is tried again; ``None``: it is tried once.

        Raises:
            RunFailedError: it failed; the event ``save_failed`` says why.
        """
        if not self._config.checkpoint.at_end:
            return
        saved, deadline, pause_s = self.saver.save_now(why), time.monotonic() + _AT_END_S, _FIRST_PAUSE_S
        while saved is None and mend is not None and time.monotonic() < deadline:
            mend(pause_s)
            saved, pause_s = self.saver.save_now(why), 2 * pause_s
        if saved is None:
            raise RunFailedError(
                "what was trained could not be saved at the end: see the event save_failed in "
                f"{self._directory / 'events.jsonl'}; the newest complete save is the one before"
            )
        self._say(
            f"saved {saved.manifest.save_id}: {saved.manifest.samples:,} samples, {saved.bytes / 1e6:.1f} MB in "
            f"{saved.write_s:.2f} s"
        )

    def _state(self) -> RunState:
        books = self._books()
        assert books is not None
        planner = self.saver.planner
        return RunState(
            books=books.state(),
            readers=self._readers,
            total_samples=self._total_samples(),
            useful_s=self._progress()[0],
            spent_pls=planner.spent_pls,
            effective_pls=planner.effective_pls,
            row_losing_failures=planner.row_losing_failures,
            seed=self._config.seed,
        )

    def _progress(self) -> tuple[float, int, int]:
        """Useful seconds, samples trained, samples of the run."""
        useful_s = self._useful_base_s + (time.monotonic() - self._since_s if self._since_s else 0.0)
        books = self._books()  # none while everybody goes back to a save
        self._trained = books.counts.trained if books else self._trained
        return useful_s, self._trained, self._total_samples()
