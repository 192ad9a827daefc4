"""Restore: every row of the asked pieces from the newest save that has it, whatever pieces it was saved in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from checkpoint.band_sink import BandSink, overlap
from checkpoint.bands import BandedPiece, check_fit, cut_into_bands
from checkpoint.catalog import SaveCatalog
from checkpoint.chain import Chain, Skipped
from checkpoint.checked_reader import CheckedReader
from checkpoint.choosing import choose_complete
from checkpoint.errors import CheckpointError, SaveCorrupt, SaveIncomplete, SaveNotFound, StorageError
from checkpoint.file_restore import Staging, Wanted, restore_file
from checkpoint.manifest import FileEntry, Manifest, Segment
from checkpoint.opened import opened
from checkpoint.piece_rows import PieceRows
from checkpoint.read_state import read_states
from checkpoint.tensor_file import read_header


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
    states: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict, compare=False)
    """Those that were asked for, of the newest save."""

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


def restore_newest(
    store: SaveCatalog,
    into: Sequence[PieceRows],
    *,
    states: Sequence[str] = (),
    exact: bool = False,
    check: bool = True,
) -> RestoreReport:
    """Restore from the youngest save that is whole and undamaged, and say which were not.

    Rows and the named states come from one save: where either is damaged, both are taken from the one before.

    Args:
        store: of the run.
        into: the pieces to fill; undefined while this runs, and after an error.
        states: names of what is not rows, such as ``dense``; given back in the report.
        exact: take only the state of one instant, as a full recovery needs. All shards of one must restore the same
            chain: choose it once, and give it to ``restore``.
        check: compare checksums.

    Raises:
        SaveNotFound: no save will do; says why each was passed over.
        CheckpointError: the pieces do not fit what was saved.
    """
    damaged: dict[str, str] = {}
    stateless: dict[str, str] = {}
    while True:
        choice = choose_complete(store, exact=exact, damaged=damaged, stateless=stateless)
        newest = choice.chain.newest
        try:
            found = read_states(store, newest, states)
            report = restore(store, choice.chain, into, check=check, skipped=choice.skipped)
            return replace(report, states=found)
        except DamagedSave as error:
            damaged[error.save_id] = error.message
        except (SaveCorrupt, SaveIncomplete, SaveNotFound, StorageError) as error:
            stateless[newest.save_id] = str(error)


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
        CheckpointError: the pieces do not fit what was saved.
    """
    for rows in into:
        check_fit(rows, chain.tables, weights_only=weights_only)
    segments = _by_age(chain)
    ordinals = {id(segment): ordinal for ordinal, (_, segment) in enumerate(segments)}
    of_table: dict[str, list[Segment]] = defaultdict(list)
    for _, segment in segments:
        of_table[segment.table].append(segment)
    pieces = [cut_into_bands(rows, of_table[rows.piece.table]) for rows in into]
    bands: dict[str, list[BandSink]] = defaultdict(list)
    for piece in pieces:
        bands[piece.rows.piece.table] += piece.bands
    staging = Staging()
    bytes_read = 0
    for save in chain.saves:
        for file in save.files:
            takers = (
                (s, [band for band in bands[s.table] if overlap(s, band.piece)])
                for s in file.segments
                if s.rows and s.table in bands
            )
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


def _by_age(chain: Chain) -> list[tuple[Manifest, Segment]]:
    """All segments with their saves, by cut; of equal cuts the younger save's is the newer."""
    every = [(save, segment) for save in chain.saves for file in save.files for segment in file.segments]
    return sorted(every, key=lambda entry: (entry[0].cut(entry[1]), entry[0].sequence))


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


def _rows_by_save(
    pieces: Sequence[BandedPiece], segments: Sequence[tuple[Manifest, Segment]], chain: Chain
) -> dict[str, int]:
    places = {save_id: place for place, save_id in enumerate(chain.save_ids)}
    place_of = torch.tensor([places[save.save_id] for save, _ in segments])
    counts = torch.zeros(len(places), dtype=torch.int64)
    for piece in pieces:
        counts += torch.bincount(place_of[piece.newest()], minlength=len(places))
    return dict(zip(chain.save_ids, counts.tolist(), strict=True))
