"""Raw category values to table rows, for all features at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from trainer.config import DataConfig
from trainer.data.block import I64, U64, RawBlock
from trainer.data.categories import category_settings
from trainer.data.errors import DataError
from trainer.data.hashing import HashEncoder, hash_rows
from trainer.data.identity import IdentityEncoder, ModuloEncoder, modulo_rows
from trainer.data.lookup import RowLookup
from trainer.data.schema import FeatureSchema
from trainer.data.vocabulary import Vocabulary, VocabularyEncoder

Encoder = HashEncoder | VocabularyEncoder | IdentityEncoder | ModuloEncoder

_BY_ROWS: Final[dict[str, Callable[[int], Encoder]]] = {
    "hash": HashEncoder,
    "identity": IdentityEncoder,
    "modulo": ModuloEncoder,
}

_OTHERS = np.arange(4096, dtype=np.uint64) << np.uint64(34)
"""Added to a value, they give others that no 32-bit category has."""

_build_lock = threading.Lock()


class FeatureEncoders:
    """One encoder per sparse feature. Picklable; the lookup table of the vocabularies is built once per process."""

    def __init__(
        self, schema: FeatureSchema, encoders: Mapping[str, Encoder], hotness: Mapping[str, int] | None = None
    ) -> None:
        """Takes exactly one encoder for each sparse feature of ``schema``, by name; ``hotness`` where it is not 1."""
        names = [spec.name for spec in schema.sparse]
        if set(encoders) != set(names):
            raise ValueError(f"encoders are for {sorted(encoders)}, sparse features are {sorted(names)}")
        self.schema = schema
        self.encoders = {name: encoders[name] for name in names}
        listed = list(self.encoders.values())
        self._hashed = [f for f, encoder in enumerate(listed) if isinstance(encoder, HashEncoder)]
        self._listed = [f for f, encoder in enumerate(listed) if isinstance(encoder, VocabularyEncoder)]
        self._plain = [f for f, encoder in enumerate(listed) if isinstance(encoder, IdentityEncoder)]
        self._wrapped = [f for f, encoder in enumerate(listed) if isinstance(encoder, ModuloEncoder)]
        table_rows = np.array([[encoder.rows] for encoder in listed], dtype=np.uint64).reshape(-1, 1)
        self._hash_rows, self._wrap_rows = table_rows[self._hashed], table_rows[self._wrapped]
        self._hotness = [1 if hotness is None else hotness.get(name, 1) for name in names]
        self._lookup: RowLookup | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lookup": None}

    @property
    def rows(self) -> dict[str, int]:
        """Embedding table rows per feature."""
        return {name: encoder.rows for name, encoder in self.encoders.items()}

    def check(self, block: RawBlock, path: str) -> None:
        """Makes sure that ids that are rows already lie in their tables; ``encode`` does not look again.

        Raises:
            DataError: with the row of ``path``, the feature and the id.
        """
        for f in self._plain:
            name, encoder = list(self.encoders.items())[f]
            assert isinstance(encoder, IdentityEncoder)
            column = block.categories[f]
            values, lengths = column if isinstance(column, tuple) else (column, None)
            bad = np.flatnonzero(values >= encoder.rows)
            if bad.size:
                at = int(bad[0]) if lengths is None else int(np.searchsorted(np.cumsum(lengths), bad[0], "right"))
                row = block.line_start + at if block.row_index is None else int(block.row_index[at])
                raise DataError(path, f"row {row + 1}: feature {name!r}: {encoder.problem(int(values[bad[0]]))}")

    @property
    def one_hot(self) -> bool:
        """Whether one-hot data stays one-hot."""
        return max(self._hotness, default=1) == 1

    def spread(self, categories: U64) -> list[tuple[U64, I64]]:
        """F×n one-hot categories as (n·h values, n lengths) per feature: each value, then the others it stands for."""
        rows = categories.shape[1]
        return [
            ((values[:, None] + _OTHERS[:hotness]).reshape(-1), np.full(rows, hotness, dtype=np.int64))
            for values, hotness in zip(categories, self._hotness, strict=True)
        ]

    def encode(self, block: RawBlock) -> tuple[I64, I64 | None]:
        """A block as one batch: L feature-major row ids, and F·n lengths (``None`` when all features are one-hot)."""
        categories = block.categories
        if not isinstance(categories, list):
            if self.one_hot:
                return self.encode_matrix(categories).reshape(-1), None
            categories = self.spread(categories)
        features = [self.encode_feature(f, values) for f, (values, _) in enumerate(categories)]
        return np.concatenate(features), np.concatenate([lengths for _, lengths in categories])

    def encode_matrix(self, categories: U64) -> I64:
        """Row ids of one-hot features: …×F×B (a view in any memory order) to a contiguous array of the same shape."""
        features = categories.shape[-2]
        if len(self._hashed) == features:
            return hash_rows(np.ascontiguousarray(categories), self._hash_rows)
        if len(self._listed) == features:
            return self._table().find(categories)
        ids = np.empty(categories.shape, dtype=np.int64)
        if self._hashed:
            ids[..., self._hashed, :] = hash_rows(categories[..., self._hashed, :], self._hash_rows)
        if self._listed:
            ids[..., self._listed, :] = self._table().find(categories[..., self._listed, :])
        if self._wrapped:
            ids[..., self._wrapped, :] = modulo_rows(categories[..., self._wrapped, :], self._wrap_rows)
        if self._plain:
            ids[..., self._plain, :] = categories[..., self._plain, :]
        return ids

    def encode_feature(self, feature: int, values: U64) -> I64:
        """Row ids of L values of one feature."""
        if feature in self._hashed:
            return hash_rows(values, self._hash_rows[self._hashed.index(feature)])
        if feature in self._listed:
            return self._table().find_feature(self._listed.index(feature), values)
        if feature in self._wrapped:
            return modulo_rows(values, self._wrap_rows[self._wrapped.index(feature)])
        return values.astype(np.int64)

    def _table(self) -> RowLookup:
        if self._lookup is None:
            listed = list(self.encoders.values())
            with _build_lock:  # several reader threads share this object
                if self._lookup is None:
                    vocabularies = [e.values for f in self._listed if isinstance(e := listed[f], VocabularyEncoder)]
                    self._lookup = RowLookup(vocabularies)
        return self._lookup


def build_encoders(
    schema: FeatureSchema, cfg: DataConfig, vocabularies: Mapping[str, Vocabulary] | None = None
) -> FeatureEncoders:
    """Encoders as ``data.categories`` and ``data.features`` ask for.

    Args:
        schema: the columns.
        cfg: the settings.
        vocabularies: one for each feature with ``encoding: vocabulary`` (built or loaded).
    """
    encoders: dict[str, Encoder] = {}
    hotness: dict[str, int] = {}
    for name, chosen in category_settings(schema, cfg).items():
        hotness[name] = chosen.hotness
        if chosen.encoding != "vocabulary":
            encoders[name] = _BY_ROWS[chosen.encoding](chosen.rows)
        elif vocabularies is not None and name in vocabularies:
            encoders[name] = VocabularyEncoder(vocabularies[name].values)
        else:
            where = f"{cfg.vocabulary} has" if cfg.vocabulary else "there is"
            raise ValueError(
                f"feature {name!r} is encoded by vocabulary, but {where} none for it; "
                "`penumbra prepare --vocabulary` or training without data.vocabulary builds it"
            )
    return FeatureEncoders(schema, encoders, hotness)
