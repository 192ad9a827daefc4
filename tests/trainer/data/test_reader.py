"""Reader threads: every row once, exact batches, drains, errors, a prompt end."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trainer.data.reference import GOOD_LINE, parse_line, write_lines
from tests.trainer.data.test_movielens import grouplens
from trainer.config import CategoryConfig, DataConfig
from trainer.data.assembler import BatchAssembler
from trainer.data.batch import Batch
from trainer.data.block import RejectedLine
from trainer.data.dataset import FileDataset, open_dataset
from trainer.data.encoder import FeatureEncoders, build_encoders
from trainer.data.errors import DataError
from trainer.data.lease_source import Done, Drain, Signal
from trainer.data.reader import BatchReader
from trainer.data.split import Lease, Split
from trainer.data.vocabulary_build import build_vocabularies


class ListSource:
    """Gives out what it was given, once; then ``Done``."""

    def __init__(self, work: Sequence[Lease | Signal]) -> None:
        self._work = list(work)
        self._lock = threading.Lock()

    def next(self) -> Lease | Signal:
        with self._lock:
            return self._work.pop(0) if self._work else Done


def line_of(row: int) -> str:
    fields = GOOD_LINE.split("\t")
    fields[0], fields[1], fields[14] = str(row % 2), str(row), f"{row:08x}"
    return "\t".join(fields)


def consume(reader: BatchReader, consumers: int = 1) -> list[Batch]:
    batches: list[Batch] = []
    ended: list[bool] = []

    def loop() -> None:
        while (batch := reader.get()) is not None:
            batches.append(batch)
        ended.append(True)

    threads = [threading.Thread(target=loop, daemon=True) for _ in range(consumers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(ended) == consumers
    return batches


def criteo(path: Path, per_split: int = 16_384, **more: object) -> tuple[FileDataset, FeatureEncoders]:
    cfg = DataConfig(train=str(path), eval_fraction=0, rows_per_split=per_split, **more)  # type: ignore[arg-type]
    dataset = open_dataset(cfg)
    plan = dataset.plan_splits()
    return dataset, build_encoders(dataset.schema, cfg, build_vocabularies(dataset, plan.train, cfg))


def check_cover(batches: list[Batch], leases: dict[int, Lease], bad_rows: set[int]) -> None:
    """Each leased row is in exactly one span, with the right number of survivors, of a batch of its purpose."""
    covered: dict[int, list[int]] = defaultdict(list)
    for batch in batches:
        assert sum(span.rows for span in batch.spans) == batch.size
        for span in batch.spans:
            rows = range(span.start, span.end)
            assert span.rows == len(set(rows) - bad_rows)
            assert batch.purpose == leases[span.lease_id].purpose
            covered[span.lease_id] += rows
        for one, two in zip(batch.spans, batch.spans[1:], strict=False):
            assert (one.lease_id, one.end) != (two.lease_id, two.start)  # adjacent spans are one span
    for lease_id, lease in leases.items():
        assert sorted(covered[lease_id]) == [row for start, end in lease.ranges for row in range(start, end)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 60),
    bad=st.sets(st.integers(0, 59)),
    batch_size=st.integers(1, 25),
    per_split=st.integers(1, 30),
    threads=st.integers(1, 3),
    consumers=st.integers(1, 3),
    seed=st.integers(0, 1000),
    zipped_vocabulary=st.booleans(),
)
def test_every_leased_row_is_in_exactly_one_span(
    tmp_path: Path, rows: int, bad: set[int], batch_size: int, per_split: int, threads: int, consumers: int, seed: int,
    zipped_vocabulary: bool,
) -> None:  # fmt: skip
    rng = random.Random(seed)
    lines = ["not a row" if row in bad else line_of(row) for row in range(rows)]
    path = write_lines(tmp_path / "a.tsv", lines)
    encoding = "vocabulary" if zipped_vocabulary else "hash"
    dataset, encoders = criteo(path, per_split, categories=CategoryConfig(encoding=encoding))
    leases: dict[int, Lease] = {}
    work: list[Lease | Signal] = []
    for i, split in enumerate(dataset.plan_splits().train):
        edges = sorted(rng.sample(range(split.row_start, split.row_end + 1), k=min(4, split.rows + 1) // 2 * 2))
        ranges = (
            tuple(zip(edges[::2], edges[1::2], strict=True))
            if rng.random() < 0.5
            else ((split.row_start, split.row_end),)
        )
        leases[i] = Lease(i, split, 0, rng.choice(["train", "train", "eval", "predict"]), ranges)
        work.append(leases[i])
        if rng.random() < 0.3:
            work.append(Drain)
    rejected: list[RejectedLine] = []
    reader = BatchReader(dataset, encoders, ListSource(work), batch_size, threads, 2, rejected.extend)
    batches = consume(reader, consumers)
    reader.close()
    check_cover(batches, leases, bad)
    leased = [row for lease in leases.values() for start, end in lease.ranges for row in range(start, end)]
    assert sorted(line.line for line in rejected) == [row + 1 for row in leased if row in bad]
    assert sum(batch.size for batch in batches) == len(set(leased) - bad)
    expected = {row: parse_line(lines[row]) for row in leased if row not in bad}
    for batch in batches:
        raw_rows = np.rint(np.expm1(batch.dense[:, 0].numpy())).astype(int).tolist()
        spanned = [row for span in batch.spans for row in range(span.start, span.end) if row not in bad]
        assert raw_rows == spanned  # samples in the order of the spans
        assert (None if batch.rows is None else batch.rows.tolist()) == (
            spanned if batch.purpose == "predict" else None
        )
        assert batch.labels.tolist() == [expected[row][0] for row in raw_rows]
        assert batch.lengths is None and batch.values.is_contiguous() and batch.dense.is_contiguous()
        raw = np.array([expected[row][2] for row in raw_rows], dtype=np.uint64).reshape(-1, 26)
        ids = [encoder.encode(raw[:, f]) for f, encoder in enumerate(encoders.encoders.values())]
        assert batch.values.tolist() == np.concatenate(ids).tolist()


def test_batches_have_exact_size_across_blocks_and_leases(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.tsv", [line_of(row) for row in range(1001)])
    dataset, encoders = criteo(path, 100)
    leases = [Lease(i, s, 0, "train", ((s.row_start, s.row_end),)) for i, s in enumerate(dataset.plan_splits().train)]
    batches = consume(BatchReader(dataset, encoders, ListSource(leases), 64))
    assert [batch.size for batch in batches] == [64] * 15 + [41]
    assert batches[1].spans == ((0, 64, 100, 36), (1, 100, 128, 28))


def test_whole_batches_are_views_of_the_block(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.tsv", [line_of(row) for row in range(40)])
    dataset, encoders = criteo(path)
    (split,) = dataset.plan_splits().train
    (block,) = dataset.read(split, ((0, 40),), 100)
    batches = list(BatchAssembler(encoders, 10).add(Lease(0, split, 0, "train", ((0, 40),)), block))
    assert len(batches) == 4
    assert batches[2].dense.data_ptr() == block.dense[20:].ctypes.data
    assert batches[2].labels.data_ptr() == block.labels[20:].ctypes.data
    stride_bytes = 8 * 26 * 10
    assert batches[3].values.data_ptr() - batches[2].values.data_ptr() == stride_bytes


def test_a_lease_of_bad_lines_only_is_answered_for(tmp_path: Path) -> None:
    dataset, encoders = criteo(write_lines(tmp_path / "a.tsv", ["bad"] * 5))
    lease = Lease(7, dataset.plan_splits().train[0], 0, "train", ((0, 2), (2, 5)))
    (batch,) = consume(BatchReader(dataset, encoders, ListSource([lease]), 3))
    assert (batch.size, batch.spans, batch.values.numel(), tuple(batch.dense.shape)) == (0, ((7, 0, 5, 0),), 0, (0, 13))


@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_multi_hot_batches(tmp_path: Path, batch_size: int) -> None:
    cfg = DataConfig(format="movielens", train=str(grouplens(tmp_path / "ml")), eval_fraction=0, rows_per_split=13)
    dataset = open_dataset(cfg)
    encoders = build_encoders(dataset.schema, cfg)
    splits = dataset.plan_splits().train
    leases = [Lease(i, split, 0, "train", ((split.row_start, split.row_end),)) for i, split in enumerate(splits)]
    batches = consume(BatchReader(dataset, encoders, ListSource(leases), batch_size))
    whole = next(iter(dataset.read(Split(splits[0].path, 0, 60), ((0, 60),), 60)))
    values, lengths = encoders.encode(whole)
    assert lengths is not None
    lengths = lengths.reshape(10, 60)
    per_feature = np.split(values, np.cumsum(lengths.sum(1))[:-1])
    at = 0
    for batch in batches:
        assert batch.lengths is not None
        rows = slice(at, at + batch.size)
        assert batch.lengths.tolist() == lengths[:, rows].reshape(-1).tolist()
        parts = []
        for f in range(10):
            starts = np.concatenate(([0], np.cumsum(lengths[f])))
            parts.append(per_feature[f][starts[at] : starts[at + batch.size]])
        assert batch.values.tolist() == np.concatenate(parts).tolist()
        at += batch.size
    assert at == 60
    check_cover(batches, dict(enumerate(leases)), set())


def test_drain_hands_over_what_is_half_finished(tmp_path: Path) -> None:
    dataset, encoders = criteo(write_lines(tmp_path / "a.tsv", [line_of(row) for row in range(5)]))
    lease = Lease(0, dataset.plan_splits().train[0], 0, "train", ((0, 5),))
    more = threading.Event()

    class Waiting(ListSource):
        def next(self) -> Lease | Signal:
            answer = super().next()
            if answer is Done:
                more.wait(30)
            return answer

    reader = BatchReader(dataset, encoders, Waiting([lease, Drain]), 3)
    first, second = reader.get(), reader.get()
    assert first is not None and second is not None and (first.size, second.size) == (3, 2)
    more.set()
    assert reader.get() is None and reader.get() is None


def test_a_reader_error_reaches_every_consumer(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.tsv", [line_of(row) for row in range(5)])
    dataset, encoders = criteo(path)
    lease = Lease(0, Split(str(path), 0, 9, 0), 0, "train", ((0, 9),))
    reader = BatchReader(dataset, encoders, ListSource([lease]), 100, threads=2)
    errors: list[DataError] = []

    def loop() -> None:
        try:
            while reader.get() is not None:
                pass
        except DataError as error:
            errors.append(error)

    threads = [threading.Thread(target=loop, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(errors) == 3 and "changed" in str(errors[0])
    reader.close()


def test_an_error_of_the_callback_ends_the_reader(tmp_path: Path) -> None:
    dataset, encoders = criteo(write_lines(tmp_path / "a.tsv", ["bad", line_of(1)]))

    def refuse(lines: list[RejectedLine]) -> None:
        raise RuntimeError(f"{len(lines)} bad lines are too many")

    lease = Lease(0, dataset.plan_splits().train[0], 0, "train", ((0, 2),))
    reader = BatchReader(dataset, encoders, ListSource([lease]), 1, on_rejected=refuse)
    with pytest.raises(RuntimeError, match="1 bad lines"):
        reader.get()


def test_close_frees_threads_that_wait_for_room(tmp_path: Path) -> None:
    dataset, encoders = criteo(write_lines(tmp_path / "a.tsv", [line_of(row) for row in range(500)]))
    lease = Lease(0, dataset.plan_splits().train[0], 0, "train", ((0, 500),))
    before = set(threading.enumerate())
    reader = BatchReader(dataset, encoders, ListSource([lease] * 50), 1, threads=3, prefetch=2)
    assert reader.get() is not None
    readers = set(threading.enumerate()) - before
    assert readers
    reader.close(timeout_s=30)
    assert not any(thread.is_alive() for thread in readers)
    assert reader.get() is None
