"""What the coordinator tells a trainer about the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from checkpoint.piece import Piece
from services.config import RunConfig
from services.trainer.dense_start import DenseStart
from services.transport.shard_client import ShardTarget


@dataclass(frozen=True)
class TrainerSpec:
    """Everything but data and encoders, which travel beside it (they can be large).

    ``targets[i]`` and ``pieces[i]`` describe shard i. ``sync_server`` is ``None`` when replicas are not synchronized;
    ``sync_keeper`` names the keeper when the server shares this trainer's node. ``trained_samples`` of the run's
    ``total_samples`` were committed before this trainer came;
    ``dense_start``: what its replica may start from.
    """

    config: RunConfig
    dense_features: int
    tables: tuple[str, ...]
    table_rows: dict[str, int]
    pieces: tuple[tuple[Piece, ...], ...]
    targets: tuple[ShardTarget, ...]
    total_samples: int
    trained_samples: int
    sync_server: Any | None
    sync_keeper: str | None
    dense_start: DenseStart = field(default_factory=DenseStart)
