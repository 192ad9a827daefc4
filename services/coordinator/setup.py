"""From settings to a run that is ready to train: data, placement, rows, replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray

from checkpoint.piece import Piece
from checkpoint.priority.tables import prioritized
from checkpoint.save_policy import SavePolicy
from services.config import RunConfig
from services.coordinator.directory import Directory, Entry
from services.coordinator.launch import Launcher
from services.coordinator.nodes import Assignment, budgets
from services.coordinator.patience import Patience
from services.memory.process import ProcessIdentity
from services.placement.planner import plan_placement
from services.placement.tables import TableSpec
from services.placement_report import PlacementReport, placement_report
from services.shard.fp16_rows import fp16_warning
from services.shard.memory import ShardSpec
from services.shard.restoring import RestoreOrder
from services.shard.tracking import TrackingSpec
from services.trainer.dense_start import DenseStart, SavedAt
from services.trainer.spec import TrainerSpec
from services.transport.messages import mean_array
from services.transport.routing import order_pieces
from services.transport.shard_client import ShardTarget
from trainer.data.dataset import Dataset, SplitPlan
from trainer.data.encoder import FeatureEncoders
from trainer.data.unlabeled import PredictPlan
from trainer.tables import table_dims

_STREAMS = 1024
_REPLICA_S = 10.0


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
        failure = config.failure
        self._timeout_s = failure.startup_timeout_s
        self.patience = Patience(directory, launcher, failure.heartbeat_timeout_s, failure.startup_timeout_s)

    def load_shards(self, order: RestoreOrder | None = None) -> None:
        """Create the rows of every shard: their first values, or those of a save.

        Raises:
            CheckpointError: the save cannot be read.
        """
        for entry in self._directory.all("keeper"):  # everybody's memory comes from them
            entry.process = ProcessIdentity(*ray.get(entry.actor.identity.remote(), timeout=self._timeout_s))
            entry.ready = True
        calls = [
            (entry, entry.actor.load.remote(self.shard_spec(entry.address.index), order))
            for entry in self._directory.all("shard")
        ]
        for entry, call in calls:
            process, _ = ray.get(call, timeout=self._timeout_s)
            entry.process, entry.ready = ProcessIdentity(*process), True

    def shard_spec(self, shard_id: int) -> ShardSpec:
        """What a shard is made of."""
        config = self._config
        settings = config.checkpoint
        return ShardSpec(
            run=self._run_id,
            shard_id=shard_id,
            pieces=self._placed.pieces[shard_id],
            table_rows=self._placed.rows,
            table_dims=self._placed.dims,
            optimizer=config.embedding.optimizer,
            eps=config.embedding.eps,
            seed=config.seed,
            streams=max(_STREAMS, config.cluster.trainers * config.train.hogwild_threads),
            weights_precision=config.embedding.weights_precision,
            tracking=TrackingSpec(
                strategy=SavePolicy(settings, config.embedding.optimizer).tracked_strategy,
                tables=prioritized(self._placed.rows) if settings.enabled else (),
                priority_fraction=settings.priority_fraction,
                mfu_every=settings.mfu_every,
                ssu_every=settings.ssu_every,
                deltas=settings.deltas > 0,
            ),
        )

    def start_setup(self, trainer_id: int, trained_samples: int = 0, start: DenseStart | None = None) -> Any:
        """Begin the set-up of a trainer's current incarnation; returns the call to wait for.

        ``trained_samples``: committed by the whole run so far, for the learning rates. ``start``: what its replica may
        start from.
        """
        entry = self._directory.get("trainer", trainer_id)
        assert entry is not None
        return entry.actor.setup.remote(
            self._trainer_spec(entry.node_id, trained_samples, start or DenseStart()),
            self._dataset_ref,
            self._encoders_ref,
        )

    def setup_trainer(self, trainer_id: int, call: Any) -> str:
        """Wait until the trainer is ready to run; tells where its dense parameters are from.

        Raises:
            RayActorError: it died, or hung and was killed.
        """
        entry = self._directory.get("trainer", trainer_id)
        assert entry is not None
        process, source = self.patience.wait(call, entry)
        entry.process, entry.ready = ProcessIdentity(*process), True
        return str(source)

    def load_center(self, save: SavedAt | None = None, *, mean: bool = False) -> None:
        """Start the sync server: with the trainers' common weights, or the centre of a save where there is one.

        ``mean``: with the mean of the trainers' replicas, which have gone their own ways.
        """
        trainers = [entry for entry in self._directory.all("trainer") if entry.ready]
        server = self._directory.get("sync_server", 0)
        if not trainers or server is None:  # it is fed when a trainer is there
            return
        calls = [one.actor.center_weights.remote(save) for one in (trainers if mean else trainers[:1])]
        if mean:  # whoever hangs or died is not waited for, unless that is everybody
            done, late = ray.wait(calls, num_returns=len(calls), timeout=_REPLICA_S)
            calls = [call for call in done if _answered(call)] or late or calls
        replicas = ray.get(calls, timeout=self._timeout_s)
        weights = replicas[0] if len(replicas) == 1 else mean_array(replicas)
        call = server.actor.load.remote(weights, self._config.sync.alpha)
        server.process, server.ready = ProcessIdentity(*ray.get(call, timeout=self._timeout_s)), True

    def shard_target(self, entry: Entry, node_id: str) -> ShardTarget:
        """How a trainer on ``node_id`` reaches a shard."""
        by_objects = self._config.cluster.transport == "object"
        keeper = None if by_objects else self._launcher.shared_keeper(entry.node_id, node_id)
        return ShardTarget(entry.address, entry.actor, keeper)

    def _trainer_spec(self, node_id: str, trained_samples: int, start: DenseStart) -> TrainerSpec:
        targets = tuple(self.shard_target(entry, node_id) for entry in self._directory.all("shard"))
        if self._config.cluster.transport == "slab" and any(target.keeper is None for target in targets):
            raise ValueError(
                "cluster.transport=slab needs trainers and shards on one node; use auto (Ray objects across nodes)"
            )
        server = self._directory.get("sync_server", 0)  # none while it is being replaced
        return TrainerSpec(
            config=self._config,
            dense_features=len(self._data.dataset.schema.dense),
            tables=self._data.tables,
            table_rows=self._placed.rows,
            pieces=self._placed.pieces,
            targets=targets,
            total_samples=self._total,
            trained_samples=trained_samples,
            # One that has no weights yet is joined later; at the beginning it has them before anybody trains.
            sync_server=server.actor if server and (server.ready or not trained_samples) else None,
            sync_keeper=self._launcher.shared_keeper(server.node_id, node_id) if server else None,
            dense_start=start,
        )


def _answered(call: Any) -> bool:
    try:
        ray.get(call)
    except ray.exceptions.RayActorError:
        return False
    return True
