from __future__ import annotations

import pytest

from services.placement.memory import MemoryCost, cost_of, readable, total
from services.placement.tables import TableSpec


def test_cost_counts_weights_state_and_counters() -> None:
    assert cost_of(1_000, 16, "exact_sgd") == MemoryCost(64_000, 0, 4_000)
    assert cost_of(1_000, 16, "exact_adagrad") == MemoryCost(64_000, 64_000, 4_000)
    assert cost_of(1_000, 16, "exact_row_wise_adagrad") == MemoryCost(64_000, 4_000, 4_000)
    assert total([MemoryCost(1, 2, 3), MemoryCost(10, 20, 30)]) == MemoryCost(11, 22, 33)
    assert MemoryCost(1, 2, 3).total_bytes == 6
    assert total([]).total_bytes == 0


def test_bytes_are_readable() -> None:
    assert [readable(size) for size in (0, 1023, 1536, 3 * 2**30, 2**51)] == [
        "0 B",
        "1023 B",
        "1.50 KiB",
        "3.00 GiB",
        "2048.00 TiB",
    ]


def test_impossible_tables_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'t' has 0 rows"):
        TableSpec("t", 0, 16)
    with pytest.raises(ValueError, match=r"model\.embedding_dim must be a multiple of 4, got 6"):
        TableSpec("t", 10, 6)
    with pytest.raises(ValueError, match="needs a name"):
        TableSpec("", 10, 8)
