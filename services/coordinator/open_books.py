"""Opens a run's books from its settings and data."""

from __future__ import annotations

import math
from collections.abc import Callable

from services.config import RunConfig
from services.coordinator.accounts import Accounts
from services.coordinator.books import Books
from services.coordinator.books_state import BooksState
from services.coordinator.predictions import DIRECTORY, Predictions
from services.coordinator.run_files import RunFiles
from services.coordinator.setup import PreparedData
from services.coordinator.work_queue import WorkQueue
from services.identity import Address


def open_books(
    config: RunConfig,
    data: PreparedData,
    files: RunFiles,
    known: Callable[[Address], bool],
    state: BooksState | None = None,
) -> Books:
    """Nothing is leased yet; ``known`` tells whether an address is the current incarnation.

    ``state``: go on from there.

    Raises:
        AccountingError: it is of other data.
    """
    train, plan, predict = config.train, data.plan, data.predict
    rows = plan.train_rows + plan.eval_rows
    allowed = math.floor(config.data.max_bad_lines * rows + 1e-9)  # 0.29 × 100 is 28.999… in floating point
    splits = predict.splits if predict else ()
    queue = WorkQueue(plan.train, plan.eval, train.epochs, train.eval_every_samples, splits)
    predictions = Predictions(predict, files.directory / DIRECTORY, config.data.max_bad_lines) if predict else None
    accounts = Accounts(allowed, train.max_bad_batches)
    if state is not None:
        queue.go_to(state.position)
        accounts.go_to(state.accounts)
    return Books(queue, accounts, files, known, predictions)
