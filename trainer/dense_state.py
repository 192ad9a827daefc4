"""A dense replica as named tensors, as saves keep it: values and optimizer state of every parameter."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trainer.dense_optimizer import DenseOptimizer
from trainer.flat_parameters import FlatLayout

_STEP = "optimizer_step"
_SLOTS = {"sgd": (), "adagrad": ("sum",), "adam": ("exp_avg", "exp_avg_sq")}


def weight_tensors(layout: FlatLayout, weights: Tensor) -> dict[str, Tensor]:
    """``model.<parameter>`` → views of the flat ``weights``."""
    return {f"model.{slot.name}": view for slot, view in zip(layout.slots, layout.views(weights), strict=True)}


def dense_tensors(layout: FlatLayout, optimizer: DenseOptimizer, weights: Tensor, state: Tensor) -> dict[str, Tensor]:
    """Views of the flat buffers: also ``optimizer.<slot>.<parameter>``, and Adam's count of steps."""
    found = weight_tensors(layout, weights)
    for number, name in enumerate(_SLOTS[optimizer.kind]):
        own = state[number * layout.numel : (number + 1) * layout.numel]
        for slot, view in zip(layout.slots, layout.views(own), strict=True):
            found[f"optimizer.{name}.{slot.name}"] = view
    if optimizer.kind == "adam":
        found[_STEP] = state[2 * layout.numel : 2 * layout.numel + 1]
    return found


def load_weights(layout: FlatLayout, tensors: Mapping[str, Tensor], weights: Tensor) -> None:
    """Fill the flat ``weights`` from named tensors.

    Raises:
        ValueError: they are those of another model.
    """
    _fill(weight_tensors(layout, weights), {name: t for name, t in tensors.items() if name.startswith("model.")})


def load_dense(
    layout: FlatLayout, optimizer: DenseOptimizer, tensors: Mapping[str, Tensor], weights: Tensor, state: Tensor
) -> None:
    """Fill the flat buffers from named tensors.

    Raises:
        ValueError: they are those of another model or optimizer.
    """
    _fill(dense_tensors(layout, optimizer, weights, state), tensors)


def _fill(views: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    differing = sorted(
        name
        for name in views.keys() | tensors.keys()
        if name not in views or name not in tensors or views[name].shape != tensors[name].shape
    )
    if differing:
        listed = ", ".join(
            f"{name} is {_shape(tensors.get(name))} there, {_shape(views.get(name))} here" for name in differing[:5]
        )
        raise ValueError(
            f"the saved dense state is of another model or optimizer, in {len(differing)} tensors: {listed}; keep "
            "model.* and dense.optimizer as they were, or begin a new run"
        )
    for name, view in views.items():
        view.copy_(tensors[name])


def _shape(tensor: Tensor | None) -> str:
    return "absent" if tensor is None else "×".join(map(str, tensor.shape)) or "a number"


def snapshot(weights: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Private copies, which training does not change while they are written."""
    return torch.clone(weights), torch.clone(state)
