"""Hashing, vocabularies and the joint lookup, against pandas and dictionaries."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.config import CategoryConfig, DataConfig
from trainer.data.assembler import BatchAssembler
from trainer.data.block import MISSING, RESERVED, RawBlock
from trainer.data.dataset import open_dataset
from trainer.data.encoder import FeatureEncoders, build_encoders
from trainer.data.errors import DataError
from trainer.data.hashing import HashEncoder, mix64, text_value
from trainer.data.lookup import RowLookup
from trainer.data.schema import FeatureSchema, FeatureSpec
from trainer.data.split import Lease, Split
from trainer.data.synth import synthesize
from trainer.data.vocabulary import VocabularyEncoder, load_vocabularies, save_vocabularies
from trainer.data.vocabulary_build import ValueCounter, build_vocabularies

VALUES = st.one_of(st.integers(0, 40), st.integers(0, MISSING), st.integers(0, RESERVED - 1))


@settings(deadline=None)
@given(values=st.lists(VALUES, max_size=50), rows=st.sampled_from([2, 3, 1000, 2**31 - 1]))
def test_hash_stays_in_range_and_keeps_row_0_for_missing(values: list[int], rows: int) -> None:
    ids = HashEncoder(rows).encode(np.array([*values, MISSING], dtype=np.uint64))
    assert ids.dtype == np.int64 and ids[-1] == 0
    for value, row in zip(values, ids, strict=False):
        assert row == 0 if value == MISSING else 1 <= row < rows


def test_hash_is_splitmix64_and_even() -> None:
    # The first outputs of SplitMix64 seeded with 1234567 (reference vector of the generator's published C code).
    state = np.array([(1234567 + i * 0x9E3779B97F4A7C15) % 2**64 for i in range(3)], dtype=np.uint64)
    assert mix64(state).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    counts = np.bincount(HashEncoder(101).encode(np.arange(100_000, dtype=np.uint64)), minlength=101)
    assert counts[0] == 0
    chi2 = ((counts[1:] - 1000) ** 2 / 1000).sum()
    assert 50 < chi2 < 160  # 99 degrees of freedom


@pytest.mark.parametrize("rows", [1, 0, 2**31])
def test_hash_refuses_impossible_tables(rows: int) -> None:
    with pytest.raises(ValueError, match=r"categories\.rows"):
        HashEncoder(rows)


def test_text_values() -> None:
    assert (text_value("0"), text_value("4294967295")) == (0, 2**32 - 1)
    assert text_value("4294967296") > MISSING
    assert len({text_value(text) for text in ("M", "F", "", "Children's", "é")}) == 5


@settings(deadline=None)
@given(
    vocabularies=st.lists(st.sets(VALUES, max_size=60), min_size=1, max_size=4),
    data=st.data(),
    stacked=st.booleans(),
)
def test_lookup_equals_a_dictionary(vocabularies: list[set[int]], data: st.DataObject, stacked: bool) -> None:
    tables = [{value: i + 1 for i, value in enumerate(sorted(values))} for values in vocabularies]
    pool = st.one_of(VALUES, *(st.sampled_from(sorted(values)) for values in vocabularies if values))
    raw = np.array([data.draw(st.lists(pool, min_size=6, max_size=6)) for _ in tables], dtype=np.uint64)
    expected = np.array(
        [[table.get(value, 0) for value in row] for table, row in zip(tables, raw.tolist(), strict=True)]
    )
    lookup = RowLookup([np.array(sorted(values), dtype=np.uint64) for values in vocabularies])
    if stacked:
        found = lookup.find(raw.reshape(len(tables), 2, 3).transpose(1, 0, 2))
        assert found.flags.c_contiguous
        found = found.transpose(1, 0, 2).reshape(len(tables), 6)
    else:
        found = lookup.find(raw)
    assert np.array_equal(found, expected)
    for f, values in enumerate(vocabularies):
        assert np.array_equal(lookup.find_feature(f, raw[f]), expected[f])
        assert np.array_equal(VocabularyEncoder(np.array(sorted(values), dtype=np.uint64)).encode(raw[f]), expected[f])


def test_lookup_with_long_probe_chains() -> None:
    inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)
    hashed = [(2**64 - 2**50 + i) * inverse % 2**64 for i in range(300)]  # all of them begin at the very last slot
    crowd = {value ^ (value >> 32) for value in hashed}
    values = np.array(sorted(crowd | set(range(0, 1000, 7))), dtype=np.uint64)
    assert np.array_equal(RowLookup([values]).find(values[None]), np.arange(1, values.size + 1)[None])
    absent = np.array([value ^ 1 for value in crowd if value ^ 1 not in crowd], dtype=np.uint64)
    assert not RowLookup([values, values]).find(np.stack((absent, absent))).any()


@settings(deadline=None, max_examples=30)
@given(chunks=st.lists(st.lists(st.integers(0, 30), max_size=40), max_size=8), min_count=st.integers(1, 4))
def test_counter_equals_pandas(chunks: list[list[int]], min_count: int) -> None:
    counter = ValueCounter()
    for chunk in chunks:
        counter.add(np.array(chunk, dtype=np.uint64))
    vocabulary = counter.vocabulary(min_count)
    counts = pd.Series([value for chunk in chunks for value in chunk], dtype="uint64").value_counts().sort_index()
    kept = counts[counts >= min_count]
    assert vocabulary.values.tolist() == kept.index.tolist()
    assert vocabulary.counts.tolist() == kept.tolist()


def test_counter_merges_many_distinct_values() -> None:
    rng = np.random.default_rng(0)
    counter, everything = ValueCounter(), rng.integers(0, 300_000, 600_000).astype(np.uint64)
    for chunk in np.array_split(everything, 50):
        counter.add(chunk)
    values, counts = np.unique(everything, return_counts=True)
    vocabulary = counter.vocabulary(1)
    assert np.array_equal(vocabulary.values, values) and np.array_equal(vocabulary.counts, counts)


def test_vocabularies_of_a_file_equal_pandas(tmp_path: Path) -> None:
    synthesize(tmp_path / "data", 6000, seed=1, max_table_rows=500)
    cfg = DataConfig(
        train=str(tmp_path / "data"),
        rows_per_split=1000,
        categories=CategoryConfig(encoding="vocabulary", min_count=3),
        features={
            "C3": CategoryConfig(encoding="hash", rows=77),
            "C4": CategoryConfig(encoding="vocabulary", min_count=1),
        },
    )
    dataset = open_dataset(cfg)
    plan = dataset.plan_splits()
    vocabularies = build_vocabularies(dataset, plan.train, cfg)
    assert set(vocabularies) == {f"C{i}" for i in range(1, 27)} - {"C3"}
    frame = pd.read_csv(tmp_path / "data" / "part-00000.tsv", sep="\t", header=None, dtype=str, keep_default_na=False)
    train = frame.iloc[: plan.train_rows]
    for name, vocabulary in vocabularies.items():
        counts = (
            train[13 + int(name[1:])].map(lambda text: int(text, 16) if text else MISSING).value_counts().sort_index()
        )
        kept = counts[counts >= (1 if name == "C4" else 3)]
        assert vocabulary.values.tolist() == kept.index.tolist()
        assert vocabulary.counts.tolist() == kept.tolist()
    assert MISSING in vocabularies["C22"].values

    save_vocabularies(vocabularies, tmp_path / "vocabularies")
    loaded = load_vocabularies(tmp_path / "vocabularies")
    assert set(loaded) == set(vocabularies)
    saved = pd.read_parquet(tmp_path / "vocabularies" / "C1.parquet")
    assert saved["row"].tolist() == list(range(1, vocabularies["C1"].rows))

    encoders = pickle.loads(pickle.dumps(build_encoders(dataset.schema, cfg, loaded)))
    assert encoders.rows["C3"] == 77 and encoders.rows["C1"] == vocabularies["C1"].rows
    split = plan.eval[0]
    block = next(iter(dataset.read(split, ((split.row_start, split.row_end),), 10**6)))
    values, lengths = encoders.encode(block)
    assert lengths is None and isinstance(block.categories, np.ndarray)
    for f, ids in enumerate(values.reshape(26, block.rows)):
        name = f"C{f + 1}"
        if name == "C3":
            assert np.array_equal(ids, HashEncoder(77).encode(block.categories[f]))
        else:
            table = dict(zip(vocabularies[name].values.tolist(), range(1, 10**6), strict=False))
            assert ids.tolist() == [table.get(value, 0) for value in block.categories[f].tolist()]


def test_settings_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    schema = FeatureSchema((), (FeatureSpec("genres", True), FeatureSpec("user_id", False)))
    with pytest.raises(ValueError, match="did you mean 'genres'"):
        build_encoders(schema, DataConfig(features={"genre": CategoryConfig()}))
    with pytest.raises(ValueError, match="none for it"):
        build_encoders(schema, DataConfig(categories=CategoryConfig(encoding="vocabulary")), {})
    with pytest.raises(ValueError, match="sparse features are"):
        FeatureEncoders(schema, {"user_id": HashEncoder(5)})
    with pytest.raises(ValueError, match="ascending"):
        VocabularyEncoder(np.array([3, 3], dtype=np.uint64))
    with pytest.raises(DataError, match="no such directory"):
        load_vocabularies(tmp_path / "gone")
    (tmp_path / "C1.parquet").write_bytes(b"half a file")
    with pytest.raises(DataError, match="not a vocabulary file"):
        load_vocabularies(tmp_path)


def test_multi_hot_block_is_encoded_feature_major() -> None:
    schema = FeatureSchema(("x",), (FeatureSpec("genres", True), FeatureSpec("user_id", False)))
    encoders = FeatureEncoders(
        schema, {"genres": VocabularyEncoder(np.array([5, 9], dtype=np.uint64)), "user_id": HashEncoder(10)}
    )
    genres = (np.array([9, 5, 7], dtype=np.uint64), np.array([2, 0, 1]))
    users = (np.array([1, 2, MISSING], dtype=np.uint64), np.ones(3, dtype=np.int64))
    block = RawBlock(np.zeros((3, 1), np.float32), np.zeros(3, np.float32), [genres, users], 0, 3)
    values, lengths = encoders.encode(block)
    assert lengths is not None and lengths.tolist() == [2, 0, 1, 1, 1, 1]
    assert values.tolist() == [2, 1, 0, *HashEncoder(10).encode(users[0])]


def test_hotness_makes_one_hot_data_multi_hot_the_same_way_each_time() -> None:
    schema = FeatureSchema((), (FeatureSpec("a", False), FeatureSpec("b", False)))
    cfg = DataConfig.model_validate({"categories": {"rows": 1_000}, "features": {"b": {"hotness": 5}}})
    encoders = build_encoders(schema, cfg)
    assert not encoders.one_hot
    categories = np.array([[7, 8, 7, MISSING], [1, 2, 1, 1]], dtype=np.uint64)
    block = RawBlock(np.zeros((4, 0), np.float32), np.zeros(4, np.float32), categories, 0, 4)
    values, lengths = encoders.encode(block)
    assert lengths is not None
    assert lengths.tolist() == [1] * 4 + [5] * 4
    plain, no_lengths = build_encoders(schema, DataConfig.model_validate({"categories": {"rows": 1_000}})).encode(block)
    assert no_lengths is None
    assert values[:4].tolist() == plain[:4].tolist()
    bags = values[4:].reshape(4, 5)
    assert bags[:, 0].tolist() == plain[4:].tolist()  # a value keeps its own row
    assert np.array_equal(bags[0], bags[2]) and np.array_equal(bags[0], bags[3])
    assert len({*bags[0], *bags[1]}) > 7
    (batch,) = BatchAssembler(encoders, 4).add(Lease(1, Split("x", 0, 4), 0, "train", ((0, 4),)), block)
    assert batch.values.tolist() == values.tolist()
    assert batch.lengths is not None and batch.lengths.tolist() == lengths.tolist()


def test_hotness_and_the_row_cap_are_checked_and_applied() -> None:
    with pytest.raises(ValueError, match="hotness=3 needs encoding=hash or modulo, got vocabulary"):
        CategoryConfig(hotness=3, encoding="vocabulary")
    schema = FeatureSchema((), (FeatureSpec("a", False), FeatureSpec("b", False)))
    cfg = DataConfig.model_validate({"features": {"b": {"rows": 50}}, "max_table_rows": 900})
    assert build_encoders(schema, cfg).rows == {"a": 900, "b": 50}
