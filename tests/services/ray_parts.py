"""A keeper and embedding shards as real Ray actors without a coordinator, for tests of transport and exactness."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from checkpoint.piece import Piece
from services.identity import Address
from services.shard.memory import ShardSpec
from services.transport.shard_client import ShardTarget

_ROOT = str(Path(__file__).parents[2])
_HEARTBEAT_S, _LEASE_S = 1.0, 10.0  # of no use without a coordinator


@contextmanager
def private_ray() -> Iterator[None]:
    """A Ray of its own; the actors import this checkout."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray

    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if _ROOT not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([_ROOT, *filter(None, paths)])
    ray.init(
        "local",  # also where another Ray runs on this machine
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=100 * 1024 * 1024,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        yield
    finally:
        ray.shutdown()


class ShardService:
    """One node's keeper with some shards, which can be loaded again and again with other tables."""

    def __init__(self, name: str, shards: int) -> None:
        """Start keeper and idle shards at the same time."""
        from services.keeper import Keeper

        self.keeper_name = f"test-{os.getpid()}-{name}"
        self.keeper: Any = Keeper.remote(Address("keeper", 0, 1), self.keeper_name, None, _HEARTBEAT_S, _LEASE_S)
        self.shards = [self.start(Address("shard", shard_id, 1)) for shard_id in range(shards)]
        self._trainers = 0

    def start(self, address: Address) -> Any:
        """An idle shard actor."""
        from services.shard.actor import EmbeddingShard

        return EmbeddingShard.options(num_cpus=0).remote(address, self.keeper_name, None, _HEARTBEAT_S, _LEASE_S)

    def load(self, specs: Sequence[ShardSpec]) -> None:
        """Give every shard new rows; the memory of the former ones, and of all slabs, is released."""
        import ray

        ray.get(self.keeper.release.remote(""))
        ray.get([shard.load.remote(spec) for shard, spec in zip(self.shards, specs, strict=True)])

    def next_trainer(self) -> Address:
        """A trainer that the shards take for the successor of the one before."""
        self._trainers += 1
        return Address("trainer", 0, self._trainers)

    def targets(self, transport: str) -> list[ShardTarget]:
        """The shards as a trainer on the same node (``slab``) or on another one (``object``) reaches them."""
        return [
            ShardTarget(Address("shard", shard_id, 1), shard, self.keeper_name if transport == "slab" else None)
            for shard_id, shard in enumerate(self.shards)
        ]


def shard_specs(
    pieces: Sequence[Sequence[Piece]],
    rows: dict[str, int],
    dim: int | dict[str, int],
    optimizer: str,
    eps: float = 1e-8,
    weights_precision: str = "fp32",
) -> list[ShardSpec]:
    """What each shard is made of."""
    return [
        ShardSpec(
            run="test",
            shard_id=shard_id,
            pieces=tuple(own),
            table_rows=rows,
            table_dims=dict.fromkeys(rows, dim) if isinstance(dim, int) else dim,
            optimizer=optimizer,
            eps=eps,
            seed=3,
            streams=8,
            weights_precision=weights_precision,
        )
        for shard_id, own in enumerate(pieces)
    ]
