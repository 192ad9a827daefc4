"""What a run that is resumed goes on from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from checkpoint.store import CheckpointStore
from services.coordinator.open_saver import newest_consistent
from services.coordinator.run_state import RunState
from services.trainer.dense_start import SavedAt


@dataclass(frozen=True, slots=True)
class GoOn:
    """A save, the state it has, and the new timeline that goes on from it."""

    save: SavedAt
    state: RunState
    timeline: int


def go_on(store: CheckpointStore, batch: int, event: Callable[..., None], say: Callable[[str], None]) -> GoOn:
    """The newest consistent save; the first thing a resumed run says.

    Raises:
        SaveNotFound: there is none.
        CheckpointError: it cannot be read.
    """
    choice = newest_consistent(store)
    manifest = choice.chain.newest
    state = RunState.of(manifest)
    timeline = store.open_timeline(manifest.save_id)
    skipped = "".join(f"; passed over {skipped}" for skipped in choice.skipped)
    say(
        f"resumed at step {state.samples // batch:,}, {state.samples:,} samples, from save {manifest.save_id} in "
        f"{store.url}{skipped}"
    )
    event(
        "resumed",
        save_id=manifest.save_id,
        url=store.url,
        samples=state.samples,
        timeline=timeline,
        skipped=[str(one) for one in choice.skipped],
    )
    return GoOn(SavedAt(store.url, store.run, manifest.save_id), state, timeline)
