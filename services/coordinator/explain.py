"""Why a run failed, in words for a person."""

from __future__ import annotations

import ray

from checkpoint.errors import CheckpointError
from services.coordinator.accounts import TooManyBadError
from services.coordinator.failures import RunFailedError
from services.coordinator.places import NoPlaceError
from services.coordinator.predictions import PredictionsError
from services.coordinator.work_queue import AccountingError
from services.transport.errors import ShardUnavailableError


def explain(error: Exception) -> str:
    """One readable line or block: what an actor's call failed with, without Ray's remote traceback."""
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    text = str(cause) or repr(cause)
    readable = (RunFailedError, TooManyBadError, PredictionsError, NoPlaceError, CheckpointError, AccountingError)
    own = isinstance(cause, (*readable, ValueError, ShardUnavailableError))
    return text if own else f"{type(cause).__name__}: {text}"
