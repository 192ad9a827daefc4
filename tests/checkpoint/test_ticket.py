from __future__ import annotations

import pickle
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.manifest import SaveKind, TableSpec
from checkpoint.ticket import SaveTicket, parse_save_id, save_id

_KINDS = st.sampled_from(get_args(SaveKind))


@given(timeline=st.integers(0, 10**6), sequence=st.integers(0, 10**12), kind=_KINDS)
def test_names_are_read_back_even_when_they_are_long(timeline: int, sequence: int, kind: SaveKind) -> None:
    assert parse_save_id(save_id(timeline, sequence, kind)) == (timeline, sequence, kind)


@given(st.from_regex(r"\d{1,6}-\d{1,10}-(full|priority|delta|odd)\n?", fullmatch=True))
def test_what_is_read_is_the_name_of_that_save_alone(name: str) -> None:
    parsed = parse_save_id(name)
    assert parsed is None or save_id(*parsed) == name


@given(low=st.integers(0, 10**8 - 1), high=st.integers(0, 10**8 - 1))
def test_names_sort_as_saves_do(low: int, high: int) -> None:
    low, high = sorted((low, high))
    assert save_id(0, low, "full") <= save_id(0, high, "full")


@pytest.mark.parametrize(
    "name", ["", "manifest.json", "0000-00000001", "0000-00000001-full.tmp", " 0000-00000001-full"]
)
def test_other_names_are_no_saves(name: str) -> None:
    assert parse_save_id(name) is None


def test_tickets_travel_as_json_and_pickled() -> None:
    ticket = SaveTicket(
        save_id="0001-00000002-delta",
        url="s3://bucket/saves/0001-00000002-delta",
        run="r",
        kind="delta",
        consistent=False,
        timeline=1,
        sequence=2,
        parent="0000-00000001-full",
        samples=7,
        begun_unix_s=1.25,
        tables={"t": TableSpec(rows=3, dim=4, dtype="fp16", optimizer="exact_adagrad")},
    )
    assert SaveTicket.model_validate_json(ticket.model_dump_json()) == ticket
    assert pickle.loads(pickle.dumps(ticket)) == ticket
