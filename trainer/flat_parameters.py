"""One flat float32 buffer for all dense parameters: what Hogwild threads share and what outlives a trainer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

ALIGNMENT = 16
"""Every parameter starts at a multiple of this many floats: 64 bytes, one cache line."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter: ``name`` in the module, ``shape``, and ``offset`` in floats from the start of the buffer."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def numel(self) -> int:
        """Number of floats, padding excluded."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class FlatLayout:
    """Where each parameter of a module lies in the flat buffer.

    ``numel`` counts the padding, so it is a multiple of ``ALIGNMENT``. Padding is zero and stays zero. Two layouts are
    equal when a buffer of one can be read as the other.
    """

    slots: tuple[Slot, ...]
    numel: int

    @classmethod
    def of(cls, module: nn.Module) -> FlatLayout:
        """Lay out the parameters of ``module`` in the order of ``module.named_parameters()``.

        Raises:
            ValueError: a parameter is not float32, or there is none.
        """
        slots = []
        offset = 0
        for name, parameter in module.named_parameters():
            if parameter.dtype != torch.float32:
                raise ValueError(f"parameter {name!r} is {parameter.dtype}; the flat buffer holds torch.float32 only")
            slots.append(Slot(name, tuple(parameter.shape), offset))
            offset += _padded(parameter.numel())
        if not slots:
            raise ValueError(f"{type(module).__name__} has no parameters to lay out")
        return cls(tuple(slots), offset)

    def views(self, flat: Tensor) -> list[Tensor]:
        """One view of ``flat`` per parameter, in order, each of the parameter's shape."""
        self._check_buffer(flat)
        return [flat[slot.offset : slot.offset + slot.numel].view(slot.shape) for slot in self.slots]

    def bind(self, module: nn.Module, flat: Tensor) -> None:
        """Make every parameter of ``module`` a view of ``flat``; its own values are dropped.

        Several modules may share one buffer: each keeps its own autograd version counters, so a thread's in-place
        update never breaks another thread's backward pass (Hogwild).
        """
        parameters = self._parameters(module)
        for parameter, view in zip(parameters, self.views(flat), strict=True):
            parameter.data = view

    def copy_from(self, module: nn.Module, flat: Tensor) -> None:
        """Write the parameters of ``module`` into ``flat`` and zero its padding."""
        self._gather(self._parameters(module), flat)

    def gather_grads(self, grads: Sequence[Tensor], out: Tensor) -> None:
        """Write one gradient per parameter, in layout order, into ``out`` (1-D, ``numel`` floats); padding is zero."""
        if len(grads) != len(self.slots):
            raise ValueError(f"got {len(grads)} gradients for {len(self.slots)} parameters")
        self._gather(grads, out)

    def to_json(self) -> dict[str, Any]:
        """A JSON value for a memory header; ``from_json`` reads it back."""
        return {"numel": self.numel, "slots": [[slot.name, list(slot.shape), slot.offset] for slot in self.slots]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> FlatLayout:
        """Read what ``to_json`` wrote.

        Raises:
            ValueError: the value is not a layout.
        """
        try:
            slots = tuple(
                Slot(str(name), tuple(int(size) for size in shape), int(offset))
                for name, shape, offset in value["slots"]
            )
            layout = cls(slots, int(value["numel"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a layout of dense parameters ({error!r}): {value!r:.200}") from error
        end = 0
        for slot in slots:
            if slot.offset != end or min(slot.shape, default=0) < 0:
                raise ValueError(f"layout of dense parameters: {slot} should start at {end}")
            end += _padded(slot.numel)
        if layout.numel != end:
            raise ValueError(f"layout of dense parameters says {layout.numel} floats, its parameters take {end}")
        return layout

    def _gather(self, sources: Sequence[Tensor], out: Tensor) -> None:
        self._check_buffer(out)
        parts: list[Tensor] = []
        for slot, source in zip(self.slots, sources, strict=True):
            if source.numel() != slot.numel:
                raise ValueError(f"{slot.name!r} has shape {list(slot.shape)}, got {list(source.shape)}")
            parts.append(source.detach().reshape(-1))
            if padding := _padded(slot.numel) - slot.numel:
                parts.append(_ZEROS[:padding])
        torch.cat(parts, out=out)

    def _parameters(self, module: nn.Module) -> list[Tensor]:
        named = dict(module.named_parameters())
        wanted = {slot.name: slot.shape for slot in self.slots}
        found = {name: tuple(parameter.shape) for name, parameter in named.items()}
        if found != wanted:
            differing = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
            details = ", ".join(f"{name}: {found.get(name)} instead of {wanted.get(name)}" for name in differing[:5])
            raise ValueError(
                f"{type(module).__name__} does not fit the layout in {len(differing)} parameters: {details}"
            )
        return [named[slot.name] for slot in self.slots]

    def _check_buffer(self, flat: Tensor) -> None:
        if flat.dtype != torch.float32 or flat.shape != (self.numel,) or not flat.is_contiguous():
            raise ValueError(
                f"the flat buffer must be {self.numel} contiguous torch.float32, got {list(flat.shape)} {flat.dtype}"
            )


_ZEROS = torch.zeros(ALIGNMENT)


def _padded(numel: int) -> int:
    return -(-numel // ALIGNMENT) * ALIGNMENT
