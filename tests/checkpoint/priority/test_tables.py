"""Which tables are prioritized, on the published cardinalities of Criteo's logs."""

from __future__ import annotations

import pytest

from benchmarks.kaggle import ROWS as KAGGLE
from checkpoint.priority.tables import prioritized

TERABYTE = (  # of at most 10,000,000 rows each, as in MLPerf's DLRM v1
    *(9_980_333, 36_084, 17_217, 7378, 20_134, 3, 7112, 1442, 61, 9_758_201, 1_333_352, 313_829, 10, 2208, 11_156),
    *(122, 4, 970, 14, 9_994_222, 7_267_859, 9_946_608, 415_421, 12_420, 101, 36),
)


def _share(rows: tuple[int, ...], tables: tuple[str, ...]) -> float:
    return sum(rows[int(name)] for name in tables) / sum(rows)


@pytest.mark.parametrize(("rows", "count", "share"), [(TERABYTE, 7, 0.9912), (KAGGLE, 6, 0.9916)])
def test_criteo(rows: tuple[int, ...], count: int, share: float) -> None:
    chosen = prioritized({str(index): size for index, size in enumerate(rows)})
    assert len(chosen) == count
    assert _share(rows, chosen) == pytest.approx(share, abs=5e-5)
    assert _share(rows, chosen[:-1]) < 0.99  # the fewest
    assert [rows[int(name)] for name in chosen] == sorted(rows, reverse=True)[:count]


def test_the_seventh_kaggle_table_makes_the_papers_share() -> None:
    assert sum(sorted(KAGGLE, reverse=True)[:7]) / sum(KAGGLE) == pytest.approx(0.9958, abs=5e-5)


def test_everything_and_nothing() -> None:
    assert prioritized({"b": 5, "a": 5, "c": 1}, share=1.0) == ("a", "b", "c")
    assert prioritized({}) == ()
    with pytest.raises(ValueError, match=r"\(0, 1\], got 0"):
        prioritized({"a": 1}, share=0.0)
