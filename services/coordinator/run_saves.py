"""A run's saves: where it starts from, what it saves while it goes, and the last one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from services.config import RunConfig
from services.coordinator.books import Books
from services.coordinator.directory import Directory
from services.coordinator.failures import RunFailedError
from services.coordinator.nodes import Assignment
from services.coordinator.open_saver import newest_consistent, open_saver
from services.coordinator.open_store import open_store
from services.coordinator.run_state import RunState
from services.coordinator.setup import PlacedTables
from services.summary import Pls
from services.trainer.dense_start import SavedAt


class RunSaves:
    """The store and its saver; when resuming, the save to go on from, in a timeline of its own."""

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
        *,
        resume: bool,
    ) -> None:
        """``resume``: go on from the newest consistent save.

        Raises:
            SaveNotFound: to resume was asked for, and there is nothing to resume from.
            CheckpointError: a save cannot be read.
        """
        self._config, self._directory, self._books, self._total_samples = config, directory, books, total_samples
        self._event, self._say = event, say
        self.store = open_store(config, directory)
        self._useful_base_s, self._since_s = 0.0, 0.0
        timeline, save, state = self._go_on() if resume else (0, None, None)
        self.start_from = (save, state)
        self.saver = open_saver(
            config, self.store, timeline, placed, assignment, actors, self._state, self._progress, training, event, say
        )
        if save is not None and state is not None:
            self.saver.planner.resumed(state.spent_pls, state.effective_pls, state.row_losing_failures)
            self.saver.rolled_back(save.save_id, timeline, state.samples)

    @property
    def started_samples(self) -> int:
        """Trained before this process of the run began."""
        state = self.start_from[1]
        return state.samples if state else 0

    @property
    def pls(self) -> Pls:
        """The quality budget."""
        planner = self.saver.planner
        return Pls(budget=planner.budget, spent=planner.spent_pls, effective=planner.effective_pls)

    def start(self) -> None:
        """Training begins now."""
        self._since_s = time.monotonic()
        self.saver.start()

    def newest(self) -> SavedAt | None:
        """For a trainer that finds nobody to copy from."""
        saves = self.store.list()
        return SavedAt(self.store.url, self.store.run, saves[-1].save_id) if saves else None

    def at_end(self, why: str) -> None:
        """The last save, from which the run can be exported or gone on with.

        Raises:
            RunFailedError: it failed; the event ``save_failed`` says why.
        """
        if not self._config.checkpoint.at_end:
            return
        saved = self.saver.save_now(why)
        if saved is None:
            raise RunFailedError(
                "what was trained could not be saved at the end: see the event save_failed in "
                f"{self._directory / 'events.jsonl'}; the newest complete save is the one before"
            )
        self._say(
            f"saved {saved.manifest.save_id}: {saved.manifest.samples:,} samples, {saved.bytes / 1e6:.1f} MB in "
            f"{saved.write_s:.2f} s"
        )

    def _go_on(self) -> tuple[int, SavedAt | None, RunState | None]:
        choice = newest_consistent(self.store)
        manifest = choice.chain.newest
        state = RunState.of(manifest)
        timeline = self.store.open_timeline(manifest.save_id)
        self._useful_base_s = state.useful_s
        skipped = "".join(f"; passed over {skipped}" for skipped in choice.skipped)
        self._say(
            f"resumed at step {state.samples // self._config.train.batch_size:,}, {state.samples:,} samples, from save "
            f"{manifest.save_id} in {self.store.url}{skipped}"
        )
        self._event(
            "resumed",
            save_id=manifest.save_id,
            url=self.store.url,
            samples=state.samples,
            timeline=timeline,
            skipped=[str(one) for one in choice.skipped],
        )
        return timeline, SavedAt(self.store.url, self.store.run, manifest.save_id), state

    def _state(self) -> RunState:
        books = self._books()
        assert books is not None
        planner = self.saver.planner
        return RunState(
            books=books.state(),
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
        books = self._books()
        return useful_s, books.counts.trained if books else 0, self._total_samples()
