"""Ray Data as a parallel map with errors as values."""

from __future__ import annotations

import logging
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ray_map(run: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Results in the order in which they are finished, one task an item; Ray repeats a task whose worker dies.

    Raises:
        Exception: the first one that ``run`` raised, as it was.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray.data
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    rows = [{"item": pickle.dumps(item)} for item in items]
    if not rows:
        return

    def guarded(row: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"result": pickle.dumps(run(pickle.loads(row["item"]))), "failed": False}
        except Exception as error:  # Ray Data would wrap it in its own, with three tracebacks
            return {"result": pickle.dumps(error), "failed": True}

    results = ray.data.from_items(rows, override_num_blocks=len(rows)).map(guarded)
    for row in results.iter_rows():
        result = pickle.loads(row["result"])
        if row["failed"]:
            raise result
        yield result
