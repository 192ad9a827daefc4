"""Brings the wanted rows of one file of a save into the bands that want them, in one pass over the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from checkpoint.band_sink import BandSink, Claim
from checkpoint.checked_reader import CheckedReader
from checkpoint.encodings import decode
from checkpoint.manifest import Segment, TableSpec
from checkpoint.segment_tensors import find_slot, read_ids
from checkpoint.tensor_file import TensorSlot

_STAGE_BYTES: Final = 4 << 20


class Staging:
    """Bounded memory, used again for everything that cannot be read straight into its place."""

    def __init__(self) -> None:
        self._raw = torch.empty(_STAGE_BYTES, dtype=torch.uint8)
        self._decoded = torch.empty(_STAGE_BYTES // 4)

    def raw(self, rows: int, slot: TensorSlot) -> Tensor:
        """Room for ``rows`` of a tensor, of its type and shape."""
        return self._raw[: rows * slot.row_bytes].view(slot.dtype).view(rows, *slot.shape[1:])

    def decoded(self, rows: int, dim: int) -> Tensor:
        """Room for ``rows``×``dim`` float32."""
        return self._decoded[: rows * dim].view(rows, dim)

    @staticmethod
    def capacity_rows(row_bytes: int, dim: int) -> int:
        """Rows that fit, raw and decoded."""
        return max(1, _STAGE_BYTES // max(row_bytes, 4 * dim))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A segment, its place among those of its table by age, and who takes of it."""

    segment: Segment
    ordinal: int
    bands: Sequence[BandSink]


@dataclass(slots=True)
class _Open:
    """A wanted segment while its tensors pass by: rows are claimed when the first comes."""

    wanted: Wanted
    left: int = 0
    claims: list[Claim] | None = field(default=None)


def restore_file(
    reader: CheckedReader,
    slots: Mapping[str, TensorSlot],
    tables: Mapping[str, TableSpec],
    wanted: Sequence[Wanted],
    staging: Staging,
    where: str,
) -> None:
    """Read the file once, from front to back; sets nothing that some band has newer.

    Raises:
        SaveCorrupt: a tensor is missing, not as the manifest says, or the checksum is wrong. What the bands hold then
            must not be used.
    """
    passing: list[tuple[TensorSlot, str, _Open]] = []
    for item in wanted:
        state = _Open(item)
        for name in item.bands[0].tensors:
            slot = find_slot(slots, item.segment, name, tables[item.segment.table], where)
            passing.append((slot, name, state))
            state.left += 1
    for slot, name, state in sorted(passing, key=lambda entry: entry[0].start):
        if state.claims is None:
            state.claims = _claims(reader, slots, state.wanted, tables, where)
        _bring(reader, slot, name, state.wanted.segment, state.claims, staging)
        state.left -= 1
        if not state.left:
            state.claims = None
    reader.finish()


def _claims(
    reader: CheckedReader,
    slots: Mapping[str, TensorSlot],
    wanted: Wanted,
    tables: Mapping[str, TableSpec],
    where: str,
) -> list[Claim]:
    segment = wanted.segment
    ids = read_ids(reader, slots, segment, tables[segment.table], where) if segment.sparse else None
    claims = (band.claim(segment, wanted.ordinal, ids) for band in wanted.bands)
    return sorted((claim for claim in claims if claim is not None), key=lambda claim: claim.begin)


def _bring(
    reader: CheckedReader, slot: TensorSlot, name: str, segment: Segment, claims: list[Claim], staging: Staging
) -> None:
    if len(claims) == 1:
        memory = claims[0].memory(name, slot.dtype)
        if memory is not None:
            reader.read_into(slot.start + claims[0].begin * slot.row_bytes, memory)
            return
    dim = segment.col_end - segment.col_start
    packed = name == "weight" and segment.encoding in ("int8", "int4")
    step = staging.capacity_rows(slot.row_bytes, dim)
    for begin, end in _runs(claims):
        for first in range(begin, end, step):
            rows = staging.raw(min(step, end - first), slot)
            reader.read_into(slot.start + first * slot.row_bytes, rows)
            if packed:
                rows = decode(rows, segment.encoding, dim, staging.decoded(rows.shape[0], dim))
            for claim in claims:
                claim.put(name, first, rows)


def _runs(claims: Sequence[Claim]) -> list[tuple[int, int]]:
    """The claimed rows of the segment without those that nobody wants, ascending."""
    runs: list[tuple[int, int]] = []
    for claim in claims:
        if runs and claim.begin <= runs[-1][1]:
            runs[-1] = (runs[-1][0], max(runs[-1][1], claim.end))
        else:
            runs.append((claim.begin, claim.end))
    return runs
