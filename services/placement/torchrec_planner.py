"""TorchRec's ``EmbeddingShardingPlanner`` set up for shards that trainers call.

Importing this module imports ``torchrec.distributed`` (over a second): import it where a plan is made.

TorchRec's own cost model assumes that every device also trains: row-wise then looks nearly free, and it splits every
table, down to three rows. Here a trainer fetches one B×D vector per *piece*, so a split table costs its shards less
reading but every trainer more traffic and one more addition. The estimator, proposer and rating below say that: split
as few tables as the memory allows, largest first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    CustomTopologyData,
    Enumerator,
    KernelConfig,
    ParameterConstraints,
    Perf,
    PerfModel,
    PlannerError,
    PlannerErrorType,
    Proposer,
    SharderDataMap,
    ShardEstimator,
    ShardingOption,
    Storage,
    Topology,
    TopologyFactory,
    TrainerConfig,
)
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from services.placement.placement import Sharding
from services.placement.tables import TableSpec


class Block(NamedTuple):
    """What one shard gets of one table."""

    shard_id: int
    row_start: int
    row_end: int
    col_start: int
    col_end: int


_DOES_NOT_FIT = (PlannerErrorType.INSUFFICIENT_STORAGE, PlannerErrorType.STRICT_CONSTRAINTS)


def plan_blocks(
    tables: Sequence[TableSpec],
    allowed: Mapping[str, Sequence[Sharding]],
    min_partition: Mapping[str, int],
    budget_bytes_per_shard: Sequence[int],
    bytes_of: Callable[[int, int], int],
    split_at_least: int,
) -> dict[str, list[Block]] | None:
    """Ask TorchRec's planner who owns which rows.

    Args:
        tables: at least one.
        allowed: table → the kinds of sharding it may get.
        min_partition: table → the fewest columns of a piece, for column-wise ones.
        budget_bytes_per_shard: by shard_id.
        bytes_of: (rows, dim) → bytes of a piece.
        split_at_least: how many of the tables that may have both kinds must be row-wise.

    Returns:
        Table → its blocks, or ``None`` when nothing fits.
    """
    # Table names are the user's: inside TorchRec they would be module names, where dots and "type" are illegal.
    aliases = {f"t{index}": table for index, table in enumerate(tables)}
    module = EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingBagConfig(name=alias, num_embeddings=table.rows, embedding_dim=table.dim, feature_names=[alias])
            for alias, table in aliases.items()
        ],
    )
    constraints = {
        alias: ParameterConstraints(
            sharding_types=list(allowed[table.name]), min_partition=min_partition.get(table.name)
        )
        for alias, table in aliases.items()
    }
    topology = _topology(budget_bytes_per_shard)
    planner = EmbeddingShardingPlanner(
        topology=topology,
        enumerator=EmbeddingEnumerator(
            topology, batch_size=1, constraints=constraints, estimator=[_PieceEstimator(bytes_of)]
        ),
        storage_reservation=FixedPercentageStorageReservation(0.0),
        proposer=_FewestSplits(split_at_least),
        performance_model=_FetchedVectors(),
        stats=[],
        constraints=constraints,
        debug=False,
    )
    try:
        plan = planner.plan(module, [_CpuSharder()])
    except PlannerError as error:
        if error.error_type not in _DOES_NOT_FIT:
            raise
        return None
    return {
        aliases[alias].name: [
            Block(
                shard.placement.rank(),
                shard.shard_offsets[0],
                shard.shard_offsets[0] + shard.shard_sizes[0],
                shard.shard_offsets[1],
                shard.shard_offsets[1] + shard.shard_sizes[1],
            )
            for shard in parameter.sharding_spec.shards
            if shard.shard_sizes[0] > 0
        ]
        for alias, parameter in plan.plan[""].items()
    }


def _topology(budget_bytes_per_shard: Sequence[int]) -> Topology:
    shards = len(budget_bytes_per_shard)
    # Unequal budgets make TorchRec split rows in proportion to them; equal ones are left out so that it splits evenly.
    unequal = len(set(budget_bytes_per_shard)) > 1
    budgets = CustomTopologyData({"ddr_cap": list(budget_bytes_per_shard)}, shards) if unequal else None
    return TopologyFactory.create_topology(
        TrainerConfig(
            world_size=shards,
            local_world_size=shards,
            ddr_cap_bytes=max(budget_bytes_per_shard),
            additional_params={"custom_topology_data": budgets} if budgets else {},
        ),
        kernel_config=KernelConfig(compute_device="cpu"),
    )


class _CpuSharder(EmbeddingBagCollectionSharder):  # type: ignore[misc]
    """TorchRec's sharder offers row- and column-wise on CUDA only; the planner takes its word for it."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return ["table_wise", "row_wise", "column_wise"]


class _PieceEstimator(ShardEstimator):  # type: ignore[misc]
    """Bytes by our own count, so that planner and printed estimate agree; time as reading plus sending, both in D."""

    def __init__(self, bytes_of: Callable[[int, int], int]) -> None:
        self._bytes_of = bytes_of

    def estimate(self, sharding_options: list[ShardingOption], sharder_data_map: SharderDataMap) -> None:
        for option in sharding_options:
            table_rows = option.tensor.shape[0]
            for shard in option.shards:
                rows, dim = shard.size
                read, sent = dim * rows / table_rows, dim if rows else 0
                shard.storage = Storage(hbm=0, ddr=self._bytes_of(rows, dim) if rows else 0)
                shard.perf = Perf(fwd_compute=read, fwd_comms=sent, bwd_compute=read, bwd_comms=sent)


class _FetchedVectors(PerfModel):  # type: ignore[misc]
    """Rates a plan by the pooled vectors that a trainer fetches per sample; fewer is better."""

    def __init__(self) -> None:
        """Needs no topology."""

    def rate(self, plan: list[ShardingOption]) -> float:
        return float(sum(option.num_shards for option in plan))


class _FewestSplits(Proposer):  # type: ignore[misc]
    """Finds the smallest k such that splitting the k largest tables by rows fits: log₂ T proposals, no order by chance.

    Splitting one more table only ever evens memory out, so fitting is monotone in k but for rounding.
    """

    def __init__(self, split_at_least: int) -> None:
        self._least = split_at_least

    def load(self, search_space: list[ShardingOption], enumerator: Enumerator | None = None) -> None:
        self._options: dict[str, dict[str, ShardingOption]] = {}
        for option in search_space:
            self._options.setdefault(option.fqn, {})[option.sharding_type] = option
        free = [fqn for fqn, kinds in self._options.items() if len(kinds) > 1]
        self._largest_first = sorted(free, key=lambda fqn: -self._options[fqn]["table_wise"].total_storage.ddr)
        # Invariant: `_fits` is the smallest count known to fit, `_fails` the largest known not to.
        self._fails = min(self._least, len(free)) - 1
        self._fits = len(free) + 1
        self._splits = self._fails + 1

    def propose(self) -> list[ShardingOption] | None:
        if self._fits - self._fails <= 1:
            return None
        split = set(self._largest_first[: self._splits])
        return [
            next(iter(kinds.values())) if len(kinds) == 1 else kinds["row_wise" if fqn in split else "table_wise"]
            for fqn, kinds in self._options.items()
        ]

    def feedback(
        self,
        partitionable: bool,
        plan: list[ShardingOption] | None = None,
        perf_rating: float | None = None,
        storage_constraint: Topology | None = None,
    ) -> None:
        if partitionable:
            self._fits = self._splits
        else:
            self._fails = self._splits
        self._splits = (self._fits + self._fails) // 2
