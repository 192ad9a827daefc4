"""Ids that are rows already, ids by remainder, prepared vocabularies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.trainer.data.reference import GOOD_LINE, write_lines
from trainer.config import CategoryConfig, DataConfig
from trainer.data.assembler import BatchAssembler
from trainer.data.block import MISSING, RawBlock
from trainer.data.dataset import open_dataset
from trainer.data.encoder import FeatureEncoders, build_encoders
from trainer.data.errors import DataError
from trainer.data.hashing import HashEncoder
from trainer.data.identity import IdentityEncoder, IdRangeError, ModuloEncoder
from trainer.data.schema import FeatureSchema, FeatureSpec
from trainer.data.split import Lease, Split
from trainer.data.vocabulary import VocabularyEncoder, save_vocabularies
from trainer.data.vocabulary_build import build_vocabularies, find_vocabularies

ENCODERS = {
    "plain": IdentityEncoder(10),
    "wrapped": ModuloEncoder(7),
    "hashed": HashEncoder(50),
    "listed": VocabularyEncoder(np.array([3, 5], dtype=np.uint64)),
}
RAW = np.array([[0, 9, 4], [MISSING, 6, 700], [1, 2, MISSING], [5, 4, 3]], dtype=np.uint64)


def encoders(multi_hot: bool) -> FeatureEncoders:
    return FeatureEncoders(FeatureSchema((), tuple(FeatureSpec(name, multi_hot) for name in ENCODERS)), ENCODERS)


def test_rows_of_mixed_encodings() -> None:
    expected = [[0, 9, 4], [0, 6, 0], ENCODERS["hashed"].encode(RAW[2]).tolist(), [2, 0, 1]]
    ids = encoders(False).encode_matrix(RAW)
    assert ids.tolist() == expected
    assert ids.dtype == np.int64
    for f, (encoder, row) in enumerate(zip(ENCODERS.values(), RAW, strict=True)):
        assert encoder.encode(row).tolist() == expected[f]
        assert encoders(True).encode_feature(f, row).tolist() == expected[f]


@pytest.mark.parametrize("value", [10, MISSING, 2**40])
def test_an_id_beyond_the_table_names_feature_id_and_rows(value: int) -> None:
    raw = RAW.copy()
    raw[0, 1] = value
    found = {10: "id 10", MISSING: "a missing value"}.get(value, "text or an id over 2\\^32")
    block = RawBlock(np.zeros((3, 0), np.float32), np.zeros(3, np.float32), raw, 40, 44, np.array([40, 42, 43]))
    lease = Lease(0, Split("a.tsv", 40, 44), 0, "train", ((40, 44),))
    with pytest.raises(DataError, match=rf"a\.tsv: row 43: feature 'plain': {found} .*0 to 9 \(rows: 10\)"):
        list(BatchAssembler(encoders(False), 2).add(lease, block))
    ones = np.ones(3, dtype=np.int64)
    lists = [(raw[0], np.array([0, 3, 0])), *((row, ones) for row in raw[1:])]
    block = RawBlock(np.zeros((3, 0), np.float32), np.zeros(3, np.float32), lists, 40, 43)
    with pytest.raises(DataError, match="row 42: feature 'plain'"):
        list(BatchAssembler(encoders(True), 2).add(lease, block))
    with pytest.raises(IdRangeError, match="raise rows"):
        IdentityEncoder(10).encode(raw[0])


def test_settings_choose_the_encoder(tmp_path: Path) -> None:
    cfg = DataConfig(
        train="x",
        categories=CategoryConfig(encoding="modulo", rows=5),
        features={"C2": CategoryConfig(encoding="identity", rows=9)},
    )
    built = build_encoders(open_dataset(cfg.model_copy(update={"train": str(_log(tmp_path))})).schema, cfg)
    assert built.encoders["C1"] == ModuloEncoder(5)
    assert built.encoders["C2"] == IdentityEncoder(9)


def test_prepared_vocabularies_are_loaded(tmp_path: Path) -> None:
    categories = CategoryConfig(encoding="vocabulary")
    cfg = DataConfig(train=str(_log(tmp_path)), eval_fraction=0, categories=categories)
    dataset = open_dataset(cfg)
    splits = dataset.plan_splits().train
    built = build_vocabularies(dataset, splits, cfg)
    save_vocabularies(built, tmp_path / "vocabulary")
    prepared = cfg.model_copy(update={"vocabulary": str(tmp_path / "vocabulary")})
    loaded = find_vocabularies(dataset, (), prepared)
    assert {name: v.values.tolist() for name, v in loaded.items()} == {n: v.values.tolist() for n, v in built.items()}
    rare = prepared.model_copy(update={"categories": CategoryConfig(encoding="vocabulary", min_count=2)})
    assert find_vocabularies(dataset, (), rare)["C1"].values.tolist() == [0x68FD1E64]
    (tmp_path / "vocabulary" / "C7.parquet").unlink()
    with pytest.raises(ValueError, match=r"'C7' is encoded by vocabulary, but .*vocabulary has none for it"):
        build_encoders(dataset.schema, prepared, find_vocabularies(dataset, (), prepared))


def _log(folder: Path) -> Path:
    return write_lines(folder / "a.tsv", [GOOD_LINE, GOOD_LINE, GOOD_LINE.replace("68fd1e64", "00000001", 1)])
