"""Where a trainer's dense replica starts: its predecessor's memory, a peer, a save, the centre, or from nothing."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import ray
from torch import nn

from checkpoint.catalog import SaveCatalog
from checkpoint.manifest import Manifest
from checkpoint.read_state import read_state
from services.identity import Address
from services.memory.descriptors import KeeperError
from services.memory.header import HeaderError
from services.trainer.dense_memory import DenseMemory
from services.transport.messages import to_tensor
from trainer.dense_optimizer import DenseOptimizer
from trainer.dense_state import load_dense
from trainer.flat_parameters import FlatLayout


@dataclass(frozen=True, slots=True)
class SavedAt:
    """One save of a run: enough to read it anywhere."""

    url: str
    run: str
    save_id: str

    def open(self) -> tuple[SaveCatalog, Manifest]:
        """The catalog, and the save's manifest."""
        catalog = SaveCatalog(self.url, run=self.run)
        return catalog, catalog.read_manifest(self.save_id)


@dataclass(frozen=True, slots=True)
class DenseStart:
    """What a trainer may start from.

    Attributes:
        peer: a living trainer; its replica and optimizer state are as good as the lost ones.
        save: of this run.
        rollback: the save it is, whatever is in memory.
    """

    peer: Any | None = None
    save: SavedAt | None = None
    rollback: bool = False


def dense_state_name(trainer_id: int) -> str:
    """Name of a replica in a save."""
    return f"dense/trainer-{trainer_id}"


MEMORY = "its memory"
INITIAL = "its initial values"

_PEER_S = 30.0

CENTER_STATE = "dense/center"
"""Name of the sync server's copy in a save."""


def start_dense(
    keeper: str, address: Address, start: DenseStart, module: nn.Module, layout: FlatLayout, optimizer: DenseOptimizer
) -> tuple[DenseMemory, str]:
    """The replica's memory, filled; and in words where from.

    Raises:
        ValueError: the memory or the save holds another model or optimizer.
        CheckpointError: the save cannot be read.
    """
    memory = _adopted(keeper, address, layout) if address.generation > 1 else None
    if memory is not None and not start.rollback:
        return memory, MEMORY
    if memory is None:
        memory = DenseMemory.create(keeper, address, module, layout, optimizer)
    if start.peer is not None and not start.rollback:
        # It died or hangs as well: the save is next.
        with contextlib.suppress(ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            weights, state = ray.get(start.peer.dense_state.remote(), timeout=_PEER_S)
            memory.weights.copy_(to_tensor(weights))
            memory.state.copy_(to_tensor(state))
            return memory, "a peer"
    if start.save is not None:
        catalog, manifest = start.save.open()
        tensors = read_state(catalog, manifest, _saved_name(manifest, address.index))
        load_dense(layout, optimizer, tensors, memory.weights, memory.state)
        return memory, f"save {manifest.save_id}"
    if start.rollback:  # to the beginning, and its memory may be that of a trained predecessor
        layout.copy_from(module, memory.weights)
        memory.state.zero_()
    return memory, INITIAL


def _saved_name(manifest: Manifest, trainer_id: int) -> str:
    """Its own replica, or the first one where there were fewer trainers."""
    names = sorted(file.state for file in manifest.files if file.state and file.state.startswith("dense/trainer-"))
    wanted = dense_state_name(trainer_id)
    return wanted if wanted in names or not names else names[0]


def _adopted(keeper: str, address: Address, layout: FlatLayout) -> DenseMemory | None:
    try:
        return DenseMemory.adopt(keeper, address, layout)
    except KeeperError:  # died on another node, or before it had memory
        return None
    except HeaderError:  # died before its memory was complete
        DenseMemory.discard(keeper, address)
        return None
