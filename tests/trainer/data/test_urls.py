"""Every format through fsspec URLs: the same rows as from local files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest

from tests.trainer.data.reference import GOOD_LINE, check_blocks
from tests.trainer.data.test_npy import write_day
from trainer.config import ColumnsConfig, DataConfig
from trainer.data.block import RawBlock
from trainer.data.dataset import open_dataset
from trainer.data.errors import DataError
from trainer.data.paths import resolve_files
from trainer.data.synth import synthesize

LINES = [GOOD_LINE.replace("\t7", f"\t{i}", 1) for i in range(50)]


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


def copy_in(memory: Any, folder: Path) -> str:
    for path in folder.iterdir():
        memory.pipe(f"/data/{path.name}", path.read_bytes())
    return "memory://data"


def read(**settings: Any) -> list[RawBlock]:
    dataset = open_dataset(DataConfig(eval_fraction=0, rows_per_split=16, **settings))
    return [b for s in dataset.plan_splits().train for b in dataset.read(s, ((s.row_start, s.row_end),), 16)]


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
@pytest.mark.parametrize("where", ["memory://data", "memory://data/*.tsv*", "memory://data/part.tsv.x"])
def test_text_in_memory(memory: Any, tmp_path: Path, compression: str | None, where: str) -> None:
    with pa.output_stream(str(tmp_path / "part.tsv.x"), compression=compression) as file:
        file.write("".join(line + "\n" for line in LINES).encode())
    memory.pipe("/data/part.tsv.x", (tmp_path / "part.tsv.x").read_bytes())
    if where == "memory://data":
        memory.mv("/data/part.tsv.x", "/data/part.tsv")
    check_blocks(read(train=where), LINES, range(50))


def test_file_urls_are_local_paths(tmp_path: Path) -> None:
    path = tmp_path / "a b.tsv"
    path.write_text("\n".join(LINES))
    check_blocks(read(train=path.as_uri()), LINES, range(50))
    assert resolve_files(path.as_uri(), (".tsv",)) == [str(path)]


@pytest.mark.parametrize("format", ["parquet", "npy", "npy_multi_hot", "csv"])
def test_other_formats_equal_local_ones(memory: Any, tmp_path: Path, format: Any) -> None:
    columns = ColumnsConfig()
    if format == "parquet":
        synthesize(tmp_path, rows=100, seed=0, max_table_rows=50, format="parquet", files=2)
    elif format == "csv":
        columns = ColumnsConfig(label="y", categorical=("u",))
        (tmp_path / "a.csv").write_text("y,u\n" + "1,a\n0,b\n" * 20)
    else:
        write_day(tmp_path, 0, 40)
    local = read(format=format, train=str(tmp_path), columns=columns)
    remote = read(format=format, train=copy_in(memory, tmp_path), columns=columns)
    assert len(local) == len(remote) > 1
    for one, other in zip(local, remote, strict=True):
        assert np.array_equal(one.labels, other.labels)
        assert np.array_equal(one.dense, other.dense)
        if isinstance(one.categories, list):
            pairs = zip(one.categories, other.categories, strict=True)
            assert all(np.array_equal(a, b) for left, right in pairs for a, b in zip(left, right, strict=True))
        else:
            assert np.array_equal(one.categories, np.asarray(other.categories))


def test_addresses_that_cannot_be_opened(memory: Any) -> None:
    with pytest.raises(DataError, match="no such file"):
        resolve_files("memory://nothing", (".tsv",))
    with pytest.raises(
        DataError, match=r"dropbox://a: this kind of address needs another package: pip install dropboxdrivefs"
    ):
        resolve_files("dropbox://a", (".tsv",))
    with pytest.raises(DataError, match="no such kind of address"):
        resolve_files("ftpx://host/a", (".tsv",))
    memory.mkdir("/empty")
    with pytest.raises(DataError, match="no files"):
        resolve_files("memory://empty", (".tsv",))
