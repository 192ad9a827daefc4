"""The run's settings: one model composed of the packages' own, loaded by ``services.config_file``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from checkpoint.checkpoint_config import CheckpointConfig
from services.state.config import StateConfig
from sync.config import SyncConfig
from trainer.config import DataConfig, DenseConfig, EmbeddingConfig, ModelConfig, Settings, TrainConfig


class ClusterConfig(Settings):
    """Which actors run, where, and how they talk.

    ``address``: ``None`` starts Ray inside the command; ``auto`` or an address joins a running cluster.
    ``transport``: ``auto`` uses shared-memory slabs on the same node and Ray objects across nodes.
    ``spare_shards``: idle shard processes on every node that has shards; they take over in a tenth of a second.
    ``wire``: number format of pooled rows and their gradients between trainer and shard.
    ``memory_budget_bytes``: what one node may spend on embedding rows, optimizer state and counters; ``None`` means
    80 % of the memory Ray reports for the node.
    """

    address: str | None = None
    trainers: Annotated[int, Field(ge=1, le=1024)] = 1
    shards: Annotated[int, Field(ge=1, le=1024)] = 1
    spare_shards: Annotated[int, Field(ge=0, le=16)] = 1
    transport: Literal["auto", "slab", "object"] = "auto"
    wire: Literal["fp32", "bf16", "fp16"] = "fp32"
    memory_budget_bytes: Annotated[int, Field(ge=1)] | None = None
    trainer_cpus: Annotated[float, Field(ge=0.0)] | None = None
    shard_cpus: Annotated[float, Field(ge=0.0)] | None = None


class FailureConfig(Settings):
    """Timings of supervision, in seconds, and how many replacements a run may need.

    A heartbeat every ``heartbeat_s``; none for ``heartbeat_timeout_s`` means hung or cut off; an actor that cannot
    reach its coordinator for ``lease_s`` leaves. ``max_failures`` counts processes replaced over the whole run. Without
    ``warm`` a lost shard's memory is not adopted, so its rows come from saves: a drill of losing a node.
    """

    heartbeat_s: Annotated[float, Field(gt=0.0, le=60.0)] = 1.0
    heartbeat_timeout_s: Annotated[float, Field(gt=0.0)] = 15.0
    lease_s: Annotated[float, Field(gt=0.0)] = 30.0
    startup_timeout_s: Annotated[float, Field(gt=0.0)] = 180.0
    max_failures: Annotated[int, Field(ge=0)] = 100
    warm: bool = True

    @model_validator(mode="after")
    def _check_order(self) -> FailureConfig:
        if self.heartbeat_timeout_s < 3 * self.heartbeat_s:
            raise ValueError(
                f"failure.heartbeat_timeout_s ({self.heartbeat_timeout_s}) must be at least 3 × failure.heartbeat_s "
                f"({self.heartbeat_s}), or one late heartbeat looks like a death"
            )
        if self.lease_s < self.heartbeat_timeout_s:
            raise ValueError(
                f"failure.lease_s ({self.lease_s}) must be at least failure.heartbeat_timeout_s "
                f"({self.heartbeat_timeout_s}), or actors leave before they are missed"
            )
        return self


class RunConfig(Settings):
    """Everything one run needs. ``penumbra train --config run.yaml key.path=value`` builds it."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "run"
    storage_path: str = "runs"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    dense: DenseConfig = DenseConfig()
    train: TrainConfig = TrainConfig()
    sync: SyncConfig = SyncConfig()
    cluster: ClusterConfig = ClusterConfig()
    failure: FailureConfig = FailureConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    state: StateConfig = StateConfig()

    @field_validator("storage_path")
    @classmethod
    def _check_local(cls, path: str) -> str:
        if "://" in path:
            raise ValueError(
                f"storage_path must be a local directory, got the URL {path!r}; name a directory of this machine or of "
                "a file system mounted on it"
            )
        return path

    @property
    def synchronized(self) -> bool:
        """Whether dense replicas are kept together: one replica needs no company."""
        return self.sync.mode != "none" and self.cluster.trainers > 1

    @property
    def trainer_cpus(self) -> float:
        """CPUs each trainer reserves: ``cluster.trainer_cpus``, or one a Hogwild thread."""
        return self.train.hogwild_threads if self.cluster.trainer_cpus is None else self.cluster.trainer_cpus

    @property
    def shard_cpus(self) -> float:
        """CPUs each shard reserves: ``cluster.shard_cpus``, or one."""
        return 1.0 if self.cluster.shard_cpus is None else self.cluster.shard_cpus

    @property
    def reserved_cpus(self) -> float:
        """CPUs all actors of the run reserve."""
        return self.cluster.trainers * self.trainer_cpus + self.cluster.shards * self.shard_cpus

    @model_validator(mode="after")
    def _check_together(self) -> RunConfig:
        if self.data.unlabeled:
            raise ValueError(
                "data.unlabeled is set, but rows without labels cannot be trained on; name labeled files in data.train "
                "and the unlabeled ones in data.predict (--unlabeled FILE), which the trained model then predicts"
            )
        if self.train.deterministic and self.cluster.trainers != 1:
            raise ValueError(f"train.deterministic needs cluster.trainers=1, got {self.cluster.trainers}")
        if self.train.deterministic and self.data.reader_threads != 1:
            raise ValueError(f"train.deterministic needs data.reader_threads=1, got {self.data.reader_threads}")
        if self.checkpoint.strategy == "cpr_adagrad" and self.embedding.optimizer == "exact_sgd":
            raise ValueError(
                "checkpoint.strategy=cpr_adagrad reads the state of an Adagrad, but embedding.optimizer is exact_sgd; "
                "use checkpoint.strategy=cpr_mfu"
            )
        for name, table in self.embedding.tables.items():
            if self.model.arch == "dlrm" and table.dim not in (None, self.model.embedding_dim):
                raise ValueError(
                    f"embedding.tables.{name}.dim is {table.dim}, but the dot interaction of model.arch=dlrm needs "
                    f"model.embedding_dim ({self.model.embedding_dim}) for every table; use model.arch=dcnv2"
                )
        return self
