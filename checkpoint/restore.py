"""Restore: every row of the asked pieces from the newest save that has it, whatever pieces it was saved in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from checkpoint.band_sink import BandSink, overlap
from checkpoint.bands import BandedPiece, check_fit, cut_into_bands
from checkpoint.catalog import SaveCatalog
from checkpoint.chain import Chain, Choice, Skipped, choose
from checkpoint.checked_reader import CheckedReader
from checkpoint.errors import CheckpointError, SaveCorrupt, SaveIncomplete, SaveNotFound, StorageError
from checkpoint.file_restore import Staging, Wanted, restore_file
from checkpoint.manifest import FileEntry, Manifest, Segment
from checkpoint.opened import missing_file, opened
from checkpoint.piece_rows import PieceRows
from checkpoint.read_state import read_states
from checkpoint.tensor_file import read_header
from checkpoint.ticket import parse_save_id

_Segments: TypeAlias = dict[str, list[tuple[Manifest, Segment]]]
"""By table, oldest first; a segment's place there is its ordinal."""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What was restored from where."""

    save_ids: tuple[str, ...]
    """The chain, oldest first; the last one has the state that is not rows."""
    samples: int
    """Of the newest save."""
    exact: bool
    """Whether the rows are those of one instant."""
    rows_by_save: Mapping[str, int]
    """Rows of the pieces, by the save that has the newest version."""
    bytes_read: int
    skipped: tuple[Skipped, ...] = ()
    """Younger saves that could not be used, youngest first."""
    lossy: tuple[str, ...] = ()
    """Optimizer state that could not be carried over exactly, with the rule that was used."""

    def __str__(self) -> str:
        parts = ", ".join(f"{rows} rows from {save}" for save, rows in self.rows_by_save.items() if rows)
        text = f"restored {self.save_ids[-1]} at {self.samples} samples: {parts or 'no rows'}"
        return "; ".join([text, *(f"skipped {skipped}" for skipped in self.skipped), *self.lossy])


class DamagedSave(CheckpointError):
    """One save of a chain could not be read; ``save_id`` is the one to do without."""

    def __init__(self, save_id: str, message: str) -> None:
        super().__init__(save_id, message)
        self.save_id = save_id
        self.message = message

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Restored:
    """Rows and states of one save."""

    report: RestoreReport
    states: Mapping[str, Mapping[str, Tensor]]
    """By name, the tensors of each that was asked for; all of the save ``report.save_ids[-1]``."""


def restore_newest(
    store: SaveCatalog, into: Sequence[PieceRows], *, exact: bool = False, check: bool = True
) -> RestoreReport:
    """Restore rows from the youngest save that is whole and undamaged, and say which were not.

    Arguments and errors are those of ``restore_with_states``.
    """
    return restore_with_states(store, into, (), exact=exact, check=check).report


def restore_with_states(
    store: SaveCatalog,
    into: Sequence[PieceRows],
    states: Sequence[str],
    *,
    exact: bool = False,
    check: bool = True,
) -> Restored:
    """Restore rows and states from the youngest save that has all of them undamaged, and say which had not.

    Args:
        store: of the run.
        into: the pieces to fill; undefined while this runs, and after an error. May be none.
        states: names, such as ``dense/trainer-0``. A save that lacks one, or whose file of it is damaged, is passed
            over.
        exact: take only the state of one instant, as a full recovery needs. All shards of one must restore the same
            chain: choose it once, and give it to ``restore``.
        check: compare checksums of rows; those of states always are.

    Raises:
        SaveNotFound: no save will do; says why each was passed over.
        CheckpointError: the pieces do not fit what was saved, by their form or, of float16 rows, by the values.
    """
    damaged: dict[str, str] = {}
    while True:
        choice = choose_complete(store, exact=exact, damaged=damaged)
        try:
            found = _states(store, choice.chain.newest, states)
            return Restored(restore(store, choice.chain, into, check=check, skipped=choice.skipped), found)
        except DamagedSave as error:
            damaged[error.save_id] = error.message


def choose_complete(store: SaveCatalog, *, exact: bool = False, damaged: Mapping[str, str] | None = None) -> Choice:
    """The youngest chain of which every needed file is there; contents are not read.

    Of saves that are continued only the rows are needed, of the newest all files.

    Args:
        store: of the run.
        exact: take only the state of one instant.
        damaged: saves known to be unusable, with what is wrong.

    Raises:
        SaveNotFound: there is none; says why each was passed over.
    """
    manifests = store.list()
    unusable = dict(damaged or {})
    while True:
        choice = choose(manifests, exact=exact, unusable=unusable)
        newest = choice.chain.newest
        needed = (*map(_rows_alone, choice.chain.saves[:-1]), newest)
        faults = {save.save_id: fault for save in needed if (fault := missing_file(store, save)) is not None}
        if not faults:
            return Choice(choice.chain, (*_unreadable(store, newest), *choice.skipped))
        unusable |= faults


def restore(
    store: SaveCatalog,
    chain: Chain,
    into: Sequence[PieceRows],
    *,
    check: bool = True,
    weights_only: bool = False,
    skipped: tuple[Skipped, ...] = (),
) -> RestoreReport:
    """Fill the pieces with the newest version of each row in the chain, with its optimizer state.

    Reads the files that overlap the pieces, oldest first and each once, straight into place where form and order
    allow it. Needs 4 bytes a row and 8 MiB beside the target; where column pieces of row-wise Adagrad meet, 4 bytes
    a row and piece more.

    Args:
        store: of the run.
        chain: from ``choose``.
        into: the pieces to fill; undefined while this runs, and after an error.
        check: compare the checksum of every file that is needed, which reads all of it; else only what is wanted is
            read.
        weights_only: leave optimizer state where it is; the pieces have no place for it.
        skipped: goes into the report.

    Raises:
        DamagedSave: a file is missing, damaged, or not what the manifest says, or rows are in no save of the chain.
        CheckpointError: the pieces do not fit what was saved, by their form or, of float16 rows, by the values.
    """
    for rows in into:
        check_fit(rows, chain.tables, weights_only=weights_only)
    segments = _by_age(chain)
    ordinals = {id(segment): n for of_table in segments.values() for n, (_, segment) in enumerate(of_table)}
    pieces = [cut_into_bands(rows, [segment for _, segment in segments[rows.piece.table]]) for rows in into]
    bands: dict[str, list[BandSink]] = defaultdict(list)
    for piece in pieces:
        bands[piece.rows.piece.table].extend(piece.bands)
    staging = Staging()
    bytes_read = 0
    for save in chain.saves:
        for file in save.files:
            filled = (segment for segment in file.segments if segment.rows and segment.table in bands)
            takers = ((s, [band for band in bands[s.table] if overlap(s, band.piece)]) for s in filled)
            wanted = [Wanted(segment, ordinals[id(segment)], takes) for segment, takes in takers if takes]
            if wanted:
                bytes_read += _restore_file(store, save, file, wanted, staging, check)
    for piece in pieces:
        _require_all(piece, chain)
        piece.finish()
    return RestoreReport(
        chain.save_ids,
        chain.newest.samples,
        chain.exact,
        _rows_by_save(pieces, segments, chain),
        bytes_read,
        skipped,
        tuple(text for piece in pieces for text in piece.lossy),
    )


def check_rows(store: SaveCatalog, chain: Chain) -> None:
    """Read every file of rows in the chain once and compare its checksum; then ``restore`` may go without.

    Raises:
        DamagedSave: a file is missing or damaged.
    """
    staging = Staging()
    for save in chain.saves:
        for file in save.files:
            if any(segment.rows for segment in file.segments):
                _restore_file(store, save, file, (), staging, check=True)


def _rows_alone(save: Manifest) -> Manifest:
    """The save without its states."""
    return save.model_copy(update={"files": tuple(file for file in save.files if file.state is None)})


def _states(store: SaveCatalog, save: Manifest, names: Sequence[str]) -> dict[str, dict[str, Tensor]]:
    try:
        return read_states(store, save, names)
    except (SaveCorrupt, SaveIncomplete, SaveNotFound, StorageError) as error:
        raise DamagedSave(save.save_id, str(error)) from error


def _unreadable(store: SaveCatalog, taken: Manifest) -> list[Skipped]:
    """Saves younger than ``taken`` that have no manifest, or a damaged one."""
    skipped = []
    for save_id in reversed(store.incomplete()):
        parsed = parse_save_id(save_id)
        if parsed is None or parsed[1] < taken.sequence:
            continue
        try:
            store.read_manifest(save_id)
        except CheckpointError as error:
            skipped.append(Skipped(save_id, str(error)))
    return skipped


def _by_age(chain: Chain) -> _Segments:
    """Every table's segments with their saves, by cut; of equal cuts the younger save's is the newer."""
    every = [(save, segment) for save in chain.saves for file in save.files for segment in file.segments]
    found: _Segments = defaultdict(list)
    for save, segment in sorted(every, key=lambda entry: (entry[0].cut(entry[1]), entry[0].sequence)):
        found[segment.table].append((save, segment))
    return found


def _restore_file(
    store: SaveCatalog, save: Manifest, file: FileEntry, wanted: Sequence[Wanted], staging: Staging, check: bool
) -> int:
    """Bytes read."""
    try:
        with opened(store, save, file) as (opened_file, where):
            slots = read_header(opened_file, file.bytes, where)
            reader = CheckedReader(opened_file, file.bytes, file.checksum if check else None, where)
            restore_file(reader, slots, save.tables, wanted, staging, where)
            return reader.bytes_read
    except (SaveCorrupt, SaveIncomplete, StorageError) as error:
        raise DamagedSave(save.save_id, str(error)) from error


def _require_all(piece: BandedPiece, chain: Chain) -> None:
    absent = torch.nonzero(piece.newest() < 0).flatten()
    if not len(absent):
        return
    asked = piece.rows.piece
    raise DamagedSave(
        chain.saves[0].save_id,
        f"{asked}: {len(absent)} of {asked.rows} rows, the first one row {asked.row_start + int(absent[0])}, are in "
        f"none of the saves {', '.join(chain.save_ids)}; take an older save",
    )


def _rows_by_save(pieces: Sequence[BandedPiece], segments: _Segments, chain: Chain) -> dict[str, int]:
    counts = dict.fromkeys(chain.save_ids, 0)
    for piece in pieces:
        of_table = segments[piece.rows.piece.table]
        rows = torch.bincount(piece.newest(), minlength=len(of_table)).tolist()
        for (save, _), count in zip(of_table, rows, strict=True):
            counts[save.save_id] += count
    return counts
