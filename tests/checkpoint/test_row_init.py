from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.row_init import initial_rows

_PINNED = [0.04405965656042099, -0.0024800673127174377, -0.04677455499768257, 0.004293099045753479]


@st.composite
def _pieces(draw: st.DrawFn) -> tuple[int, int, int, int, int, int]:
    rows, dim = draw(st.integers(1, 300)), draw(st.integers(1, 40))
    row_start, row_end = sorted((draw(st.integers(0, rows)), draw(st.integers(0, rows))))
    col_start, col_end = sorted((draw(st.integers(0, dim)), draw(st.integers(0, dim))))
    return rows, dim, row_start, row_end, col_start, col_end


@given(_pieces(), st.integers(0, 2**63 - 1), st.text(max_size=8))
@settings(max_examples=200, deadline=None)
def test_any_piece_equals_the_slice_of_the_whole(
    piece: tuple[int, int, int, int, int, int], seed: int, table: str
) -> None:
    rows, dim, row_start, row_end, col_start, col_end = piece
    whole = initial_rows(seed, table, rows, dim, 0, rows)
    part = initial_rows(seed, table, rows, dim, row_start, row_end, col_start, col_end)
    np.testing.assert_array_equal(part, whole[row_start:row_end, col_start:col_end])


@pytest.mark.parametrize("dim", [16, 12, 70_000])
def test_pieces_longer_than_a_chunk_agree(dim: int) -> None:
    rows = 400_000 // dim + 3
    whole = initial_rows(1, "t", rows, dim, 0, rows)
    np.testing.assert_array_equal(initial_rows(1, "t", rows, dim, 1, rows - 1), whole[1:-1])
    np.testing.assert_array_equal(initial_rows(1, "t", rows, dim, 1, rows, 4, 8), whole[1:, 4:8])


def test_values_are_uniform_within_the_bound_of_torchrec_and_dlrm() -> None:
    rows = 10_000
    values = initial_rows(3, "t", rows, 16, 0, rows)
    bound = np.float32(1 / np.sqrt(rows))
    assert values.dtype == np.float32
    assert np.abs(values).max() <= bound
    counts, _ = np.histogram(values, bins=20, range=(-bound, bound))
    expected = values.size / 20
    assert ((counts - expected) ** 2 / expected).sum() < 50  # chi-squared, 19 degrees of freedom: p < 0.0002


def test_seed_and_table_name_each_give_another_stream() -> None:
    streams = [initial_rows(seed, table, 50, 8, 0, 50) for seed in (0, 1) for table in ("a", "b")]
    for index, one in enumerate(streams):
        for other in streams[index + 1 :]:
            assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.2


def test_values_are_fixed_forever() -> None:
    """A save names rows by id only: what an unsaved row held at the start must be reproducible by later versions."""
    found = initial_rows(42, "C1", 100, 4, 7, 8)[0]
    np.testing.assert_array_equal(found, np.array(_PINNED, np.float32))


def test_rows_beyond_two_to_the_32_elements_are_reachable() -> None:
    rows = 2**31 - 1
    tail = initial_rows(5, "huge", rows, 128, rows - 3, rows)
    np.testing.assert_array_equal(initial_rows(5, "huge", rows, 128, rows - 1, rows), tail[2:])
    assert len(np.unique(tail)) > 300


def test_fills_the_memory_it_is_given() -> None:
    expected = initial_rows(9, "t", 20, 8, 5, 15)
    out = np.empty((10, 8), np.float32)
    assert initial_rows(9, "t", 20, 8, 5, 15, out=out) is out
    np.testing.assert_array_equal(out, expected)
    wide = np.zeros((10, 24), np.float32)
    initial_rows(9, "t", 20, 8, 5, 15, out=wide[:, 8:16])
    np.testing.assert_array_equal(wide[:, 8:16], expected)
    assert (wide[:, :8] == 0).all() and (wide[:, 16:] == 0).all()


def test_misfits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"table 't' has 20 rows × 8 columns: no rows \[5, 21\)"):
        initial_rows(0, "t", 20, 8, 5, 21)
    with pytest.raises(ValueError, match=r"out must be float32 of shape \(2, 8\)"):
        initial_rows(0, "t", 20, 8, 0, 2, out=np.empty((2, 7), np.float32))
    with pytest.raises(ValueError, match="got float64"):
        initial_rows(0, "t", 20, 8, 0, 2, out=np.empty((2, 8)))  # type: ignore[arg-type]
