"""From settings to a run that is ready to train: data, placement, rows, replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray

from checkpoint.piece import Piece
from services.config import RunConfig
from services.coordinator.directory import Directory, Entry
from services.coordinator.launch import Launcher
from services.coordinator.nodes import Assignment, budgets
from services.memory.process import ProcessIdentity
from services.placement.planner import plan_placement
from services.placement.tables import TableSpec
from services.placement_report import PlacementReport, placement_report
from services.shard.fp16_rows import fp16_warning
from services.shard.memory import ShardSpec
from services.trainer.spec import TrainerSpec
from services.transport.routing import order_pieces
from services.transport.shard_client import ShardTarget
from trainer.data.dataset import Dataset, SplitPlan
from trainer.data.encoder import FeatureEncoders
from trainer.data.unlabeled import PredictPlan
from trainer.tables import table_dims

_STREAMS = 1024


@dataclass(frozen=True)
class PreparedData:
    """The data of a run, cut into splits, with its encoders."""

    dataset: Dataset
    plan: SplitPlan
    encoders: FeatureEncoders
    predict: PredictPlan | None = None

    @property
    def tables(self) -> tuple[str, ...]:
        """One table a sparse feature, in feature order."""
        return tuple(feature.name for feature in self.dataset.schema.sparse)


@dataclass(frozen=True)
class PlacedTables:
    """Which shard owns what, each shard's pieces in the order it keeps them."""

    rows: dict[str, int]
    dims: dict[str, int]
    pieces: tuple[tuple[Piece, ...], ...]
    report: PlacementReport


def place_tables(config: RunConfig, rows: dict[str, int], assignment: Assignment) -> PlacedTables:
    """Ask the planner; nothing is allocated yet.

    Raises:
        PlacementError: the tables do not fit the nodes' budgets.
    """
    tables = list(rows)
    dims = table_dims(config.model, config.embedding, tables)
    placement = plan_placement(
        [TableSpec(table, rows[table], dims[table]) for table in tables],
        config.embedding,
        assignment.shards_per_node,
        budgets(assignment, config.cluster.memory_budget_bytes),
    )
    pieces = tuple(order_pieces(placement.pieces[shard_id], tables, rows) for shard_id in sorted(placement.pieces))
    report = placement_report(
        placement,
        [node.name for node in assignment.nodes],
        assignment.shards_per_node,
        [fp16_warning()] if config.embedding.weights_precision == "fp16" else [],
    )
    return PlacedTables(rows, dims, pieces, report)


class RunSetup:
    """Gives the started actors their work."""

    def __init__(
        self,
        config: RunConfig,
        run_id: str,
        directory: Directory,
        launcher: Launcher,
        data: PreparedData,
        placed: PlacedTables,
        total_samples: int,
    ) -> None:
        self._config, self._run_id = config, run_id
        self._directory, self._launcher = directory, launcher
        self._data, self._placed, self._total = data, placed, total_samples
        self._dataset_ref, self._encoders_ref = ray.put(data.dataset), ray.put(data.encoders)
        self._timeout_s = config.failure.startup_timeout_s

    def load_shards(self) -> None:
        """Create and initialize the rows of every shard."""
        for entry in self._directory.all("keeper"):  # everybody's memory comes from them
            entry.process = ProcessIdentity(*ray.get(entry.actor.identity.remote(), timeout=self._timeout_s))
        calls: list[tuple[Any, Any]] = []
        streams = max(_STREAMS, self._config.cluster.trainers * self._config.train.hogwild_threads)
        for entry in self._directory.all("shard"):
            spec = ShardSpec(
                run=self._run_id,
                shard_id=entry.address.index,
                pieces=self._placed.pieces[entry.address.index],
                table_rows=self._placed.rows,
                table_dims=self._placed.dims,
                optimizer=self._config.embedding.optimizer,
                eps=self._config.embedding.eps,
                seed=self._config.seed,
                streams=streams,
                weights_precision=self._config.embedding.weights_precision,
            )
            calls.append((entry, entry.actor.load.remote(spec)))
        for entry, call in calls:
            entry.process = ProcessIdentity(*ray.get(call, timeout=self._timeout_s))

    def start_setup(self, trainer_id: int, trained_samples: int = 0) -> Any:
        """Begin the set-up of a trainer's current incarnation; returns the call to wait for.

        ``trained_samples``: committed by the whole run so far, for the learning rates of a replacement.
        """
        entry = self._directory.get("trainer", trainer_id)
        assert entry is not None
        return entry.actor.setup.remote(
            self._trainer_spec(entry.node_id, trained_samples), self._dataset_ref, self._encoders_ref
        )

    def setup_trainer(self, trainer_id: int, call: Any) -> bool:
        """Wait until the trainer is ready to run; True when it adopted its predecessor's dense parameters."""
        entry = self._directory.get("trainer", trainer_id)
        assert entry is not None
        process, adopted = ray.get(call, timeout=self._timeout_s)
        entry.process = ProcessIdentity(*process)
        return bool(adopted)

    def load_center(self) -> None:
        """Start the sync server with the trainers' common initial weights."""
        trainer, server = self._directory.get("trainer", 0), self._directory.get("sync_server", 0)
        if trainer is not None and server is not None:
            call = server.actor.load.remote(trainer.actor.dense_weights.remote(), self._config.sync.alpha)
            server.process = ProcessIdentity(*ray.get(call, timeout=self._timeout_s))

    def shard_target(self, entry: Entry, node_id: str) -> ShardTarget:
        """How a trainer on ``node_id`` reaches a shard."""
        by_objects = self._config.cluster.transport == "object"
        keeper = None if by_objects else self._launcher.shared_keeper(entry.node_id, node_id)
        return ShardTarget(entry.address, entry.actor, keeper)

    def _trainer_spec(self, node_id: str, trained_samples: int) -> TrainerSpec:
        targets = tuple(self.shard_target(entry, node_id) for entry in self._directory.all("shard"))
        if self._config.cluster.transport == "slab" and any(target.keeper is None for target in targets):
            raise ValueError(
                "cluster.transport=slab needs trainers and shards on one node; use auto (Ray objects across nodes)"
            )
        server = self._directory.get("sync_server", 0)
        return TrainerSpec(
            config=self._config,
            dense_features=len(self._data.dataset.schema.dense),
            tables=self._data.tables,
            table_rows=self._placed.rows,
            pieces=self._placed.pieces,
            targets=targets,
            total_samples=self._total,
            trained_samples=trained_samples,
            sync_server=server.actor if server else None,
            sync_keeper=self._launcher.shared_keeper(server.node_id, node_id) if server else None,
        )
