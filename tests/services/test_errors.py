"""Errors that travel between processes arrive as they left."""

from __future__ import annotations

import pickle

import pytest

from services.coordinator.accounts import TooManyBadError
from services.coordinator.nodes import ResourceError
from services.coordinator.work_queue import AccountingError
from services.identity import Address, StaleGenerationError
from services.memory.descriptors import KeeperError
from services.memory.header import HeaderError
from services.placement.placement import PlacementError
from services.shard.tbe import IdRangeError
from services.transport.errors import ShardUnavailableError
from trainer.data.errors import DataError


@pytest.mark.parametrize(
    "error",
    [
        AccountingError("rows"),
        DataError("a.tsv", "is empty"),
        HeaderError("short"),
        IdRangeError("table 't'"),
        KeeperError("gone"),
        PlacementError("too large"),
        ResourceError("too few"),
        ShardUnavailableError(Address("shard", 1, 2), "ActorDiedError"),
        StaleGenerationError.between("a call", 1, 2),
        TooManyBadError("lines"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_pickling_keeps_type_and_message(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error) and copy.args == error.args
