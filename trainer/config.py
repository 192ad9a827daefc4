"""Settings of the dense side: data, model, optimizers, training loop. Composed into a run by ``services.config``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Settings(BaseModel):
    """Base of every settings model: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class CategoryConfig(Settings):
    """How raw category values become row ids.

    ``hash``: a mixing hash into ``rows`` rows (row 0 is kept for *missing*). ``vocabulary``: values seen at least
    ``min_count`` times in the training rows, the others share the out-of-vocabulary row 0; *missing* is a value.
    ``identity``: the ids are rows already, each below ``rows``. ``modulo``: the remainder by ``rows``; *missing* is
    row 0. ``hotness``: one-hot data becomes multi-hot, as in MLPerf's DLRM benchmark: each value stands for that many
    ids, its own and others that it always brings along. Data that is multi-hot already stays as it is.
    """

    encoding: Literal["hash", "vocabulary", "identity", "modulo"] = "hash"
    rows: Annotated[int, Field(ge=2, le=2**31 - 1)] = 100_000
    min_count: Annotated[int, Field(ge=1)] = 1
    hotness: Annotated[int, Field(ge=1, le=4096)] = 1

    @model_validator(mode="after")
    def _check_hotness(self) -> CategoryConfig:
        if self.hotness > 1 and self.encoding not in ("hash", "modulo"):
            raise ValueError(
                f"data.categories.hotness={self.hotness} needs encoding=hash or modulo, got {self.encoding}"
            )
        return self


class ListConfig(Settings):
    """A column of lists. ``weights`` names the column with one number for each id."""

    weights: str | None = None


class ColumnsConfig(Settings):
    """Which column is what, for ``data.format`` parquet, csv and tsv; without it Parquet has Criteo's columns.

    Columns go by name; in text without a ``header`` by their entry in ``names``, or by position (from 0) when that is
    empty. Ids are text or whole numbers and mean the same either way. ``list_separator`` parts the ids of a list in
    text. ``dense_transform``: ``signed_log1p`` is sign(x)·log1p(|x|), ``log1p`` counts negative as 0.
    ``delimiter``: comma for csv, tab for tsv when left out; csv may have quotes.
    """

    label: str | None = None
    dense: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    lists: dict[str, ListConfig] = Field(default_factory=dict)
    dense_transform: Literal["signed_log1p", "log1p", "none"] = "signed_log1p"
    header: bool = True
    names: tuple[str, ...] = ()
    delimiter: Annotated[str, Field(pattern=r"^[^\r\n\"]$")] | None = None
    list_separator: Annotated[str, Field(min_length=1)] = "|"

    @property
    def given(self) -> bool:
        """Whether there is a map."""
        return bool(self.label or self.dense or self.categorical or self.lists)

    @model_validator(mode="after")
    def _check_columns(self) -> ColumnsConfig:
        weights = [item.weights for item in self.lists.values() if item.weights]
        used = [*filter(None, [self.label]), *self.dense, *self.categorical, *self.lists, *weights]
        twice = sorted({name for name in used if used.count(name) > 1})
        if twice:
            raise ValueError(f"data.columns names {', '.join(twice)} more than once; a column has one use")
        if self.names and self.header:
            raise ValueError("data.columns.names is for files without a header: set data.columns.header=false")
        unknown = sorted(set(used) - set(self.names)) if self.names else []
        if unknown:
            raise ValueError(f"data.columns.names has no {', '.join(unknown)}, which data.columns uses")
        return self


class DataConfig(Settings):
    """Where the click log is and how it is cut.

    ``train`` and ``eval`` take files, directories, globs and fsspec URLs. Without ``eval`` the last ``eval_fraction``
    of the rows, in time order, is held out and never trained on. ``features`` overrides ``categories`` for single
    features; ``max_table_rows`` caps the ``rows`` of all of them, to try a large model on a small machine.
    ``vocabulary`` names a directory of prepared vocabularies, in place of building them from the training rows.
    ``unlabeled``: the rows have no label, or one that is ignored; they cannot be trained on. ``predict``: files, as for
    ``train``, whose rows the trained model predicts at the end; labels in them are ignored.
    """

    format: Literal["criteo_tsv", "parquet", "csv", "tsv", "npy", "npy_multi_hot", "movielens"] = "criteo_tsv"
    train: str | tuple[str, ...] = ()
    eval: str | tuple[str, ...] | None = None
    eval_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    unlabeled: bool = False
    predict: str | tuple[str, ...] = ()
    rows_per_split: Annotated[int, Field(ge=1)] = 16_384
    reader_threads: Annotated[int, Field(ge=1, le=64)] = 1
    prefetch_batches: Annotated[int, Field(ge=1, le=1024)] = 8
    max_bad_lines: Annotated[float, Field(ge=0.0, le=1.0)] = 0.001
    columns: ColumnsConfig = ColumnsConfig()
    categories: CategoryConfig = CategoryConfig()
    features: dict[str, CategoryConfig] = Field(default_factory=dict)
    max_table_rows: Annotated[int, Field(ge=2)] | None = None
    vocabulary: str | None = None

    @model_validator(mode="after")
    def _check_format(self) -> DataConfig:
        columns = self.columns
        if self.format in ("csv", "tsv") and not columns.given:
            raise ValueError(f"data.format={self.format} needs data.columns: label, dense, categorical, lists")
        if columns.given:
            if self.format not in ("parquet", "csv", "tsv"):
                raise ValueError(f"data.columns is for data.format parquet, csv and tsv, not {self.format}")
            if not (columns.categorical or columns.lists):
                raise ValueError("data.columns.categorical or data.columns.lists must name at least one column")
            if not columns.label and not self.unlabeled:
                raise ValueError("data.columns.label is not set: name the column with 0 and 1")
        if self.format == "movielens" and (self.unlabeled or self.predict):
            which = "predict" if self.predict else "unlabeled"
            raise ValueError(f"data.{which} is not for data.format=movielens, whose ratings are the labels")
        return self

    @model_validator(mode="after")
    def _inherit_categories(self) -> DataConfig:
        """What ``data.features.<name>`` leaves out is as in ``data.categories``."""
        common = self.categories.model_dump()
        merged = {
            name: CategoryConfig(**{**common, **own.model_dump(include=own.model_fields_set)})
            for name, own in self.features.items()
        }
        object.__setattr__(self, "features", merged)
        return self


class ModelConfig(Settings):
    """``dlrm`` (arXiv 1906.00091): bottom MLP, pairwise dots, top MLP. ``dcnv2``: a low-rank cross net for the dots.

    ``dcn_num_layers`` layers of rank ``dcn_low_rank_dim`` (DCN-Mix without experts, arXiv 2008.13535, as TorchRec's
    ``DLRM_DCN``) see the dense vector and all pooled rows side by side, so tables may differ in width.
    """

    arch: Literal["dlrm", "dcnv2"] = "dlrm"
    embedding_dim: Annotated[int, Field(ge=4, le=1024, multiple_of=4)] = 16
    dense_arch: tuple[Annotated[int, Field(ge=1)], ...] = (512, 256, 64, 16)
    over_arch: tuple[Annotated[int, Field(ge=1)], ...] = (512, 256, 1)
    dcn_num_layers: Annotated[int, Field(ge=1, le=64)] = 3
    dcn_low_rank_dim: Annotated[int, Field(ge=1)] = 512

    @model_validator(mode="after")
    def _check_shapes(self) -> ModelConfig:
        if not self.dense_arch or self.dense_arch[-1] != self.embedding_dim:
            raise ValueError(
                f"model.dense_arch must end in model.embedding_dim ({self.embedding_dim}), got {list(self.dense_arch)}"
            )
        if len(self.over_arch) < 2 or self.over_arch[-1] != 1:
            raise ValueError(
                f"model.over_arch needs a hidden layer and must end in 1 (the logit), got {list(self.over_arch)}"
            )
        return self


class TableConfig(Settings):
    """What one table has of its own: width D, pooling of multi-hot ids, placement; ``None`` is as everywhere else."""

    dim: Annotated[int, Field(ge=4, le=1024, multiple_of=4)] | None = None
    pooling: Literal["sum", "mean"] | None = None
    sharding: Literal["auto", "table_wise", "row_wise", "column_wise"] = "auto"
    min_partition: Annotated[int, Field(ge=4, multiple_of=4)] | None = None


class EmbeddingConfig(Settings):
    """Embedding tables: optimizer fused into fbgemm's TBE, pooling, number format, placement constraints.

    ``pooling``: of a sample's ids; ``mean`` divides by their number, weighted or not, and gives zeros for none.
    ``weights_precision``: of the rows; optimizer state stays float32. With ``fp16`` an update below half the distance
    of two numbers is lost, as fbgemm has no stochastic rounding on the CPU (see docs/decisions.md).
    ``max_gradient``: every element of the pooled rows' gradient is clamped to ±this, as fbgemm does.
    ``min_partition``: columns of a column-wise piece; ``None`` cuts a table into as many as there are shards.
    Column-wise, row-wise Adagrad keeps one state a row *and piece*: TorchRec's semantics, but not the whole table's.
    """

    optimizer: Literal["exact_sgd", "exact_adagrad", "exact_row_wise_adagrad"] = "exact_row_wise_adagrad"
    learning_rate: Annotated[float, Field(gt=0.0)] = 0.02
    eps: Annotated[float, Field(gt=0.0)] = 1e-8
    decay: Literal["none", "linear"] = "none"
    pooling: Literal["sum", "mean"] = "sum"
    weights_precision: Literal["fp32", "fp16"] = "fp32"
    max_gradient: Annotated[float, Field(gt=0.0)] | None = None
    sharding: Literal["auto", "table_wise", "row_wise", "column_wise"] = "auto"
    min_partition: Annotated[int, Field(ge=4, multiple_of=4)] | None = None
    tables: dict[str, TableConfig] = Field(default_factory=dict)


class DenseConfig(Settings):
    """Optimizer of the dense parameters, applied lock-free on the flat buffer (Hogwild).

    ``gradient_clipping``: largest L2 norm of a step's gradient over all dense parameters.
    """

    optimizer: Literal["sgd", "adagrad", "adam"] = "adam"
    learning_rate: Annotated[float, Field(gt=0.0)] = 1e-3
    eps: Annotated[float, Field(gt=0.0)] = 1e-8
    gradient_clipping: Annotated[float, Field(gt=0.0)] | None = None
    warmup_samples: Annotated[int, Field(ge=0)] = 0
    decay: Literal["none", "linear"] = "linear"


class TrainConfig(Settings):
    """The Hogwild loop.

    ``lookahead`` batches of lookups are in flight per thread; it is the staleness bound. ``deterministic`` means one
    trainer, one thread, lookahead 0, FP32: two runs are bitwise equal.
    """

    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 2048
    epochs: Annotated[int, Field(ge=1)] = 1
    hogwild_threads: Annotated[int, Field(ge=1, le=256)] = 1
    lookahead: Annotated[int, Field(ge=0, le=16)] = 2
    precision: Literal["fp32", "bf16"] = "bf16"
    deterministic: bool = False
    max_bad_batches: Annotated[int, Field(ge=0)] = 10
    eval_every_samples: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _check_deterministic(self) -> TrainConfig:
        if self.deterministic and (self.hogwild_threads, self.lookahead, self.precision) != (1, 0, "fp32"):
            raise ValueError(
                "train.deterministic needs train.hogwild_threads=1, train.lookahead=0 and train.precision=fp32, got "
                f"{self.hogwild_threads}, {self.lookahead} and {self.precision}"
            )
        return self
