from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.units import count, number, percentages, size


@given(st.dictionaries(st.text(max_size=5), st.floats(0, 1e9), min_size=1, max_size=9))
def test_shares_add_up_to_a_hundred_and_stay_close(parts: dict[str, float]) -> None:
    total = math.fsum(parts.values())
    shares = percentages(parts)
    assert list(shares) == list(parts)
    if total == 0:
        assert set(shares.values()) == {0.0}
        return
    assert sum(round(share * 10) for share in shares.values()) == 1000
    for name, share in shares.items():
        assert abs(share - parts[name] / total * 100) < 0.1 + 1e-9


def test_thirds_add_up() -> None:
    assert sorted(percentages({"a": 1, "b": 1, "c": 1}).values()) == [33.3, 33.3, 33.4]


@pytest.mark.parametrize(
    ("value_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1.5 * 2**30, "1.5 GiB"),
        (2**41, "2.0 TiB"),
        (2**52, "4096.0 TiB"),
    ],
)
def test_sizes(value_bytes: float, text: str) -> None:
    assert size(value_bytes) == text


def test_numbers() -> None:
    assert (number(0.75461), number(None), number(math.nan), number(3.14159, 1)) == ("0.7546", "–", "–", "3.1")
    assert count(1234567.4) == "1,234,567"
