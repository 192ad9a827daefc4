"""Data in an object store, over the real S3 protocol; what is wrong with access to it is said in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.trainer.data.object_store import ObjectStore, forget_connections, object_store
from tests.trainer.data.reference import GOOD_LINE, check_blocks
from trainer.config import DataConfig
from trainer.data.block import RawBlock
from trainer.data.dataset import open_dataset
from trainer.data.errors import DataError
from trainer.data.files import stamp
from trainer.data.synth import synthesize

LINES = [GOOD_LINE.replace("\t7", f"\t{i}", 1) for i in range(50)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with object_store(monkeypatch) as running:
        yield running


def read(train: str, **settings: str) -> list[RawBlock]:
    dataset = open_dataset(
        DataConfig.model_validate({"train": train, "eval_fraction": 0, "rows_per_split": 16} | settings)
    )
    return [b for s in dataset.plan_splits().train for b in dataset.read(s, ((s.row_start, s.row_end),), 16)]


def test_text_is_read_from_files_directories_and_patterns(store: ObjectStore, tmp_path: Path) -> None:
    text = "".join(line + "\n" for line in LINES).encode()
    store.put("plain/part.tsv", text)
    with pa.output_stream(str(tmp_path / "part.tsv.gz"), compression="gzip") as file:
        file.write(text)
    packed = store.put("packed/part.tsv.gz", (tmp_path / "part.tsv.gz").read_bytes())
    for where in ("s3://clicks/plain", "s3://clicks/plain/*.tsv", "s3://clicks/plain/part.tsv", packed):
        check_blocks(read(where), LINES, range(50))


def test_parquet_equals_local_parquet(store: ObjectStore, tmp_path: Path) -> None:
    synthesize(tmp_path, rows=100, seed=0, max_table_rows=50, format="parquet", files=2)
    for path in tmp_path.glob("*.parquet"):
        store.put(f"parquet/{path.name}", path.read_bytes())
    local, remote = read(str(tmp_path), format="parquet"), read("s3://clicks/parquet", format="parquet")
    assert [b.labels.tolist() for b in local] == [b.labels.tolist() for b in remote] and len(local) > 1


def test_a_changed_object_has_another_stamp(store: ObjectStore) -> None:
    address = store.put("a.tsv", b"1\n")
    first = stamp(address)
    store.put("a.tsv", b"0\n")
    forget_connections()
    assert first[0] == 2 and stamp(address)[0] == 2 and stamp(address) != first


def test_a_wrong_bucket_or_path_is_named(store: ObjectStore) -> None:
    store.put("log/a.tsv", b"")
    with pytest.raises(DataError, match=r"s3://other/log: no such file or directory; check bucket and path in data\.t"):
        read("s3://other/log")
    with pytest.raises(
        DataError, match=r"s3://clicks/lag/\*\.tsv: no file matches this pattern; check bucket and path"
    ):
        read("s3://clicks/lag/*.tsv")
    with pytest.raises(DataError, match=r"s3://clicks/log/a\.tsv: is empty"):
        read("s3://clicks/log/a.tsv")


@pytest.mark.parametrize("where", ["log/a.tsv", "log", "log/*.tsv"])
def test_denied_access_is_said(store: ObjectStore, where: str) -> None:
    store.put("log/a.tsv", LINES[0].encode())
    store.refuse_everybody()
    with pytest.raises(DataError, match=rf"^s3://clicks/{where.replace('*', '.')}: access denied \(.*check the crede"):
        read(f"s3://clicks/{where}")


def test_missing_credentials_are_said(store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    address = store.put("a.tsv", LINES[0].encode())
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    forget_connections()
    with pytest.raises(
        DataError, match=r"a\.tsv: cannot be reached \(NoCredentialsError: .*; check credentials and end"
    ):
        read(address)


def test_a_server_that_does_not_answer_is_said(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    forget_connections()
    with pytest.raises(
        DataError, match=r"s3://clicks/a: cannot be reached \(EndpointConnectionError: .*127\.0\.0\.1:9"
    ):
        read("s3://clicks/a")
