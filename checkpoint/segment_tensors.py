"""The tensors that a segment has in its file: their names, forms, and the row ids."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from checkpoint.checked_reader import CheckedReader
from checkpoint.encodings import stored_form
from checkpoint.errors import SaveCorrupt
from checkpoint.manifest import Segment, TableSpec
from checkpoint.piece_rows import state_shapes
from checkpoint.tensor_file import TensorSlot


def tensor_names(segment: Segment, spec: TableSpec) -> list[str]:
    """``weight``, ``state.…`` and, of a sparse segment, ``ids``; without the prefix."""
    states = [f"state.{name}" for name in state_shapes(spec.optimizer, segment.piece)]
    return [*(["ids"] if segment.sparse else []), "weight", *states]


def find_slot(slots: Mapping[str, TensorSlot], segment: Segment, name: str, spec: TableSpec, where: str) -> TensorSlot:
    """Where the segment's tensor ``name`` lies in the file.

    Raises:
        SaveCorrupt: it is missing, or of another form than the manifest says.
    """
    full_name = f"{segment.prefix}.{name}"
    slot = slots.get(full_name)
    if slot is None:
        raise SaveCorrupt(
            f"{where}: tensor {full_name!r} of {segment.piece} is missing; a row is restored with all its state or not "
            "at all"
        )
    dtype, shape = _form(segment, name, spec)
    if (slot.dtype, slot.shape) != (dtype, shape):
        raise SaveCorrupt(
            f"{where}: tensor {full_name!r} is {slot.dtype} of shape {list(slot.shape)}; by the manifest it should be "
            f"{dtype} of shape {list(shape)}"
        )
    return slot


def read_ids(
    reader: CheckedReader, slots: Mapping[str, TensorSlot], segment: Segment, spec: TableSpec, where: str
) -> Tensor:
    """The global row ids of a sparse segment.

    Raises:
        SaveCorrupt: they are not ascending, or outside the segment's rows.
    """
    ids = torch.empty(segment.rows, dtype=torch.int64)
    reader.peek(find_slot(slots, segment, "ids", spec, where).start, ids)
    outside = len(ids) and not (segment.row_start <= int(ids[0]) and int(ids[-1]) < segment.row_end)
    if outside or not bool((ids[1:] > ids[:-1]).all()):
        raise SaveCorrupt(f"{where}: the row ids of {segment.piece} are not ascending within its rows")
    return ids


def _form(segment: Segment, name: str, spec: TableSpec) -> tuple[torch.dtype, tuple[int, ...]]:
    if name == "ids":
        return torch.int64, (segment.rows,)
    if name == "weight":
        dtype, columns = stored_form(segment.col_end - segment.col_start, segment.encoding)
        return dtype, (segment.rows, columns)
    _, *columns_of_state = state_shapes(spec.optimizer, segment.piece)[name.removeprefix("state.")]
    return torch.float32, (segment.rows, *columns_of_state)
