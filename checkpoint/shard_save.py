"""ShardSave: one shard's part of a save, copied chunk by chunk between requests and written behind its back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from functools import partial
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from checkpoint.chunk_source import ChunkSource, LiveRows
from checkpoint.cut import first_cut
from checkpoint.errors import StorageSlow
from checkpoint.manifest import Encoding, FileEntry
from checkpoint.packer import Packer
from checkpoint.piece_rows import PieceRows
from checkpoint.preserver import Preserver
from checkpoint.save_plan import FilePlan, plan_chunks, segment_of, split_files
from checkpoint.ticket import SaveTicket
from checkpoint.writer import FileJob, ShardWriter, WrittenFile

CHUNK_BYTES: Final = 4 << 20
KEPT_SHARE: Final = 0.14
"""Memory for kept rows and buffers of a consistent save, as a share of the rows: with what passes, at most 15 %."""

Undo = Callable[[], None]
OnCopied = Callable[[int, Tensor | slice], Undo | None]


class ShardSave:
    """Rows and state of a shard's pieces, one file (or several, on object stores). Not thread-safe.

    Chunked: each ``step`` is a cut of its own. Consistent (``ticket.consistent``): everything is as it was when this
    object was made; whoever updates rows must call ``before_update`` first.

    Storage never fails a call that trains: ``step`` and ``before_update`` do nothing once the save has failed, and
    ``finish`` says why.

    Args:
        ticket: of the save.
        shard_id: names the file.
        pieces: live rows.
        selections: ids to save (piece-local int64, ascending, unique) by index of the piece; ``None`` or absent: all.
        encoding: of the weights.
        writer: of this process.
        on_copied: called with (piece index, local ids, or a range of them) after a chunk was copied, such as to clear
            the rows' counters; what it returns is called by ``fail``, last first.
        beside_bytes: what the caller keeps until a consistent save is complete; so much less is kept here.
        chunk_bytes: what is copied at once; no more than the writer's buffers but one hold.
        patience_s: longest time that storage may hold up a copy that cannot wait; then the save fails.
    """

    def __init__(
        self,
        ticket: SaveTicket,
        shard_id: int,
        pieces: Sequence[PieceRows],
        selections: Mapping[int, Tensor | None],
        encoding: Encoding,
        writer: ShardWriter,
        *,
        on_copied: OnCopied | None = None,
        beside_bytes: int = 0,
        chunk_bytes: int = CHUNK_BYTES,
        patience_s: float = 10.0,
    ) -> None:
        started = time.perf_counter()
        for piece in pieces:
            if piece.piece.table not in ticket.tables:
                raise ValueError(f"save {ticket.save_id} knows no table {piece.piece.table!r}: {sorted(ticket.tables)}")
            piece.check(ticket.tables[piece.piece.table])
        self._ticket, self._shard_id, self._writer = ticket, shard_id, writer
        self._pieces = tuple(pieces)
        self._live = [LiveRows(piece) for piece in pieces]
        self._selections = _checked(selections, pieces)
        self._on_copied, self._patience_s = on_copied, patience_s
        chunk_bytes = min(chunk_bytes, writer.pool.bytes - writer.pool.buffer_bytes)  # so that a step need not wait
        chunks = plan_chunks(pieces, self._selections, encoding, chunk_bytes)
        plans = list(split_files(chunks, writer.part_bytes(ticket.url)))
        if pieces and not plans:
            plans = [FilePlan(())]  # a file that says that nothing is to be saved, where none would say nothing
        self._files = [_File(plan, _name(shard_id, part)) for part, plan in enumerate(plans)]
        self._pending = [(file, number) for file in self._files for number in range(len(file.plan.chunks))][::-1]
        self._undos: list[Undo] = []
        self._error: Exception | None = None
        self._failed = False
        self._preserver = None
        if ticket.consistent:
            capacity = int(KEPT_SHARE * sum(piece.nbytes for piece in pieces)) - writer.pool.bytes
            capacity -= beside_bytes + beside_bytes // 8  # which is what allocating it costs on top
            self._preserver = Preserver(self._pieces, self._selections, capacity)
        self._cut = self._next_cut = first_cut(ticket.sequence)
        self.stall_s = time.perf_counter() - started
        """Seconds spent here, in ``step`` and in ``before_update``: what training waited."""

    @property
    def copied(self) -> bool:
        """Whether nothing is left to copy (or the save has failed)."""
        return not self._pending or self._error is not None

    @property
    def settled(self) -> bool:
        """Whether ``finish`` would answer at once."""
        return self._error is not None or (
            not self._pending and all(file.job.result.done() for file in self._files if file.job)
        )

    @property
    def total_bytes(self) -> int:
        """Of all files."""
        return sum(file.plan.total_bytes for file in self._files)

    def step(self, max_bytes: int) -> bool:
        """Copy chunks of up to ``max_bytes`` (at least one) in one cut; to be called between requests.

        Never waits for the storage: while no buffer is free it copies nothing.

        Returns:
            Whether nothing is left to copy.
        """
        started = time.perf_counter()
        left = max_bytes
        while not self.copied:
            size = self._next_bytes()
            if (left < max_bytes and size > left) or not self._has_buffers(size):
                break
            self._copy_next()
            left -= size
        self._end_cut()
        self.stall_s += time.perf_counter() - started
        return self.copied

    def before_update(self, piece_index: int, local_ids: Tensor) -> None:
        """Preserve rows that are about to change, if they belong to a consistent save and are not copied yet.

        When no more can be preserved (at 14 % of the rows, buffers included), chunks are copied up to them instead,
        which may wait for the storage.

        Args:
            piece_index: into ``pieces``.
            local_ids: int64, in any order, with duplicates.
        """
        if self._preserver is None or self.copied:
            return
        started = time.perf_counter()
        ids = local_ids.numpy()
        while not self.copied and not self._preserver.preserve(piece_index, ids):
            self._copy_next()
        self.stall_s += time.perf_counter() - started

    def finish(self, timeout_s: float | None = None) -> list[FileEntry]:
        """Copy what is left, and wait until everything is durable.

        Returns:
            The files, for ``CheckpointStore.commit``.

        Raises:
            StorageError: the storage failed, or took longer than ``timeout_s``; ``fail`` was called.
            EncodingError: rows do not fit the encoding; ``fail`` was called.
        """
        while not self.copied:
            self._copy_next()
            self._end_cut()
        try:
            if self._error is not None:
                raise self._error
            for file in self._files:
                if not file.plan.chunks:
                    self._packer_of(file)
            return self._entries(timeout_s)
        except Exception:
            self.fail()
            raise

    def fail(self) -> None:
        """Give the save up: no more is written, files are deleted, and what ``on_copied`` did is undone."""
        if self._failed:
            return
        self._failed = True
        self._pending.clear()
        for file in self._files:
            if file.packer is not None:
                file.packer.release()
            if file.job is not None:
                self._writer.cancel(file.job)
        while self._undos:
            self._undos.pop()()

    def _entries(self, timeout_s: float | None) -> list[FileEntry]:
        started = time.perf_counter()
        jobs = [file.job for file in self._files if file.job is not None]
        _, missing = wait([job.result for job in jobs], timeout_s, FIRST_EXCEPTION)
        for job in jobs:
            if job.result.done():
                job.result.result()  # raises what the storage raised
        if missing:
            raise StorageSlow(
                f"{self._ticket.url}: {sum(job.bytes_written for job in jobs):,} of {self.total_bytes:,} bytes written "
                f"{time.perf_counter() - started:.1f} s after the last was copied; allowed are {timeout_s:g} s. "
                "Save less often (checkpoint.interval_s), or to faster storage (storage_path)"
            )
        return [self._entry(file, file.job.result.result()) for file in self._files if file.job is not None]

    def _entry(self, file: _File, written: WrittenFile) -> FileEntry:
        segments = (
            segment_of(chunk, number, self._pieces[chunk.piece_index], self._selections.get(chunk.piece_index), cut)
            for number, (chunk, cut) in enumerate(zip(file.plan.chunks, file.cuts, strict=True))
        )
        return FileEntry(
            path=file.name,
            bytes=written.bytes,
            checksum=written.checksum,
            shard_id=self._shard_id,
            segments=tuple(segments),
        )

    def _next_bytes(self) -> int:
        """What the next chunk adds to its file, with the header before the first."""
        file, number = self._pending[-1]
        return file.plan.chunks[number].nbytes + (0 if number else len(file.plan.header))

    def _has_buffers(self, size: int) -> bool:
        """Whether ``size`` bytes can be appended without waiting (as far as that is possible at all)."""
        packer, pool = self._pending[-1][0].packer, self._writer.pool
        return packer.has_buffers(size) if packer else pool.free >= min(-(-size // pool.buffer_bytes), pool.count)

    def _copy_next(self) -> None:
        """Copy the next chunk; what goes wrong is kept for ``finish``."""
        try:
            self._copy(*self._pending[-1])
            self._pending.pop()
        except Exception as error:
            self._error = error

    def _copy(self, file: _File, number: int) -> None:
        packer = self._packer_of(file)
        chunk = file.plan.chunks[number]
        index = chunk.piece_index
        selected = self._selections.get(index)
        preserver = self._preserver
        source = ChunkSource(chunk, self._live[index], selected, preserver.overlay(index) if preserver else None)
        for tensor in chunk.tensors:
            data = source.as_it_is(tensor.name)
            if data is None:
                packer.append_rows(tensor, partial(source.produce, tensor.name))
            else:
                packer.append(data)
        file.cuts.append(self._cut)
        if preserver is not None:
            total = self._pieces[index].piece.rows if selected is None else selected.size
            preserver.copied(chunk, last_of_piece=chunk.end == total)
        self._next_cut = self._cut + 1
        undo = self._on_copied(index, source.rows()) if self._on_copied is not None else None
        if undo is not None:
            self._undos.append(undo)

    def _packer_of(self, file: _File) -> Packer:
        if file.packer is None or file.job is None:
            total = file.plan.total_bytes
            file.job = self._writer.new_file(self._ticket.url, file.name, total)
            file.packer = Packer(self._writer, file.job, total, self._patience_s)
            file.packer.append(memoryview(file.plan.header))
        elif file.job.result.done():
            file.job.result.result()  # raises what the storage raised: no use in copying more
        return file.packer

    def _end_cut(self) -> None:
        """The next chunk is of another instant, unless all are of one."""
        if not self._ticket.consistent:
            self._cut = self._next_cut


class _File:
    """One file of the save as it grows."""

    def __init__(self, plan: FilePlan, name: str) -> None:
        self.plan, self.name = plan, name
        self.cuts: list[int] = []
        self.job: FileJob | None = None
        self.packer: Packer | None = None


def _name(shard_id: int, part: int) -> str:
    return f"shard-{shard_id:04d}.safetensors" if not part else f"shard-{shard_id:04d}-{part:02d}.safetensors"


def _checked(selections: Mapping[int, Tensor | None], pieces: Sequence[PieceRows]) -> dict[int, NDArray[np.int64]]:
    """Raise ``ValueError`` unless every selection is ascending and inside its piece."""
    found = {}
    for index, ids in selections.items():
        if not 0 <= index < len(pieces):
            raise ValueError(f"selection for piece {index}, but the shard has {len(pieces)} pieces")
        if ids is None:
            continue
        piece = pieces[index].piece
        if ids.dtype != torch.int64 or ids.dim() != 1:
            raise ValueError(f"{piece}: selected ids must be 1-D int64, got {ids.dim()}-D {ids.dtype}")
        found[index] = ids.contiguous().numpy()
        array = found[index]
        if array.size and (array[0] < 0 or array[-1] >= piece.rows or not (array[1:] > array[:-1]).all()):
            raise ValueError(f"{piece}: selected ids must be ascending, unique and in [0, {piece.rows})")
    return found
