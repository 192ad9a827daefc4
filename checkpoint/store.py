"""CheckpointStore: begins, commits and deletes the saves of one run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import JsonValue

from checkpoint.catalog import SAVES, TIMELINES, SaveCatalog, SaveIds
from checkpoint.completeness import check_files
from checkpoint.errors import SaveRefused
from checkpoint.manifest import MANIFEST, FileEntry, Manifest, SaveKind, TableSpec
from checkpoint.manifest_file import to_text
from checkpoint.retention import RetentionPolicy
from checkpoint.retry import RetryPolicy
from checkpoint.ticket import SaveTicket, parse_save_id, save_id
from checkpoint.timelines import TimelineRecord

_TICKET: Final = "ticket.json"
"""Left in a directory when its files are gone, so that its sequence is never given out again."""


class CheckpointStore(SaveCatalog):
    """The one writer of a catalog: one save at a time per run. Not thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        run: str,
        retry: RetryPolicy | None = None,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(url, run=run, retry=retry, storage_options=storage_options)
        self._open: str | None = None

    def begin(
        self,
        kind: SaveKind,
        *,
        timeline: int,
        samples: int,
        consistent: bool,
        tables: Mapping[str, TableSpec],
        parent: str | None,
    ) -> SaveTicket:
        """Make room for a save; the shards write with the ticket, then ``commit``.

        Args:
            kind: full, priority or delta.
            timeline: the run's.
            samples: trained when the save begins.
            consistent: whether everything will be of one cut.
            tables: all whole tables of the model.
            parent: the save this one continues; ``None`` for a full one.

        Raises:
            SaveRefused: the last save was neither committed nor aborted, or ``parent`` contradicts ``kind``.
            SaveNotFound: ``parent`` is not a complete save.
            StorageError: the directory cannot be made.
        """
        if self._open is not None:
            raise SaveRefused(f"save {self._open} is still under way: commit or abort it first; one at a time per run")
        if (parent is None) != (kind == "full"):
            raise SaveRefused(f"a {kind} save {'continues no' if kind == 'full' else 'needs the'} save before it")
        if parent is not None:
            self.read_manifest(parent)
        sequence = 1 + max((parsed[1] for parsed in map(parse_save_id, self._directories()) if parsed), default=0)
        name = save_id(timeline, sequence, kind)
        self._storage.make_directory(SAVES, name, exist_ok=False)
        ticket = SaveTicket(
            save_id=name,
            url=f"{self.url}/{SAVES}/{name}",
            run=self.run,
            kind=kind,
            consistent=consistent,
            timeline=timeline,
            sequence=sequence,
            parent=parent,
            samples=samples,
            begun_unix_s=time.time(),
            tables=dict(tables),
        )
        self._storage.write(ticket.model_dump_json().encode(), SAVES, name, _TICKET)
        self._open = name
        return ticket

    def commit(
        self, ticket: SaveTicket, files: Sequence[FileEntry], extra: Mapping[str, JsonValue] | None = None
    ) -> Manifest:
        """Make a save visible, once every file of every shard is durable.

        Raises:
            SaveIncomplete: a file is missing or has another size, or a full save lacks rows; the save stays invisible.
            SaveRefused: a file is named twice, or the save was committed before.
            StorageError: the manifest could not be written; ``commit`` may be called again.
        """
        name = ticket.save_id
        if MANIFEST in self._storage.names(SAVES, name):
            raise SaveRefused(f"save {name} was committed before")
        check_files(ticket, files, lambda path: self._storage.size(SAVES, name, path))
        manifest = Manifest(
            save_id=name,
            run=self.run,
            kind=ticket.kind,
            consistent=ticket.consistent,
            timeline=ticket.timeline,
            sequence=ticket.sequence,
            parent=ticket.parent,
            created_unix_s=time.time(),
            samples=ticket.samples,
            tables=ticket.tables,
            files=tuple(files),
            extra=dict(extra or {}),
        )
        self._storage.sync_directory(SAVES, name)
        self._storage.write(to_text(manifest), SAVES, name, MANIFEST)
        self._read[name] = manifest
        self._open = None
        return manifest

    def abort(self, ticket: SaveTicket) -> None:
        """Give a save up and delete what was written of it. Complete saves are not touched.

        Raises:
            SaveRefused: it was committed.
            StorageError: the storage does not let its files be deleted; ``sweep`` will.
        """
        self._open = None
        if MANIFEST in self._storage.names(SAVES, ticket.save_id):
            raise SaveRefused(
                f"save {ticket.save_id} was committed: it is not aborted but kept, or deleted by retention"
            )
        self._clear(ticket.save_id, keep_ticket=True)

    def open_timeline(self, from_save: str | None) -> int:
        """Begin a new timeline that goes on from ``from_save`` (``None``: from the beginning); durable on return.

        Returns:
            Its number, above every one before.
        """
        if from_save is not None:
            self.read_manifest(from_save)
        records = self._timeline_records()
        current = max(records, default=0)
        record = TimelineRecord(timeline=current + 1, parent=current, from_save=from_save, opened_unix_s=time.time())
        self._storage.make_directory(TIMELINES, exist_ok=True)
        self._storage.write(record.model_dump_json().encode(), TIMELINES, f"{record.timeline:04d}.json")
        return record.timeline

    def retain(self, policy: RetentionPolicy) -> SaveIds:
        """Delete complete saves that ``policy`` does not keep, and hidden ones, where a younger full save is visible.

        Youngest first, so that a crash in between never leaves a save whose parent is gone.

        Returns:
            Ids of the deleted saves.
        """
        if policy.keep_last is None:
            return []
        seen = self.list()
        youngest_full = max((save.sequence for save in seen if save.kind == "full"), default=0)
        kept = policy.kept(seen)
        doomed = sorted(
            (save for name, save in self._complete().items() if name not in kept and save.sequence < youngest_full),
            key=lambda save: -save.sequence,
        )
        newest = max((parsed[1] for parsed in map(parse_save_id, self._directories()) if parsed), default=0)
        for save in doomed:
            self._read.pop(save.save_id, None)
            self._clear(save.save_id, keep_ticket=save.sequence == newest)
        return [save.save_id for save in doomed]

    def sweep(self) -> SaveIds:
        """Delete what crashed and failed saves left; not the one under way, nor saves whose manifest is damaged.

        The newest directory keeps its ticket, so that its sequence is not used again by anybody.

        Returns:
            Ids of the saves that were swept.
        """
        swept = []
        names = sorted(self._directories(), key=lambda name: (parse_save_id(name) or (0, 0, ""))[1])
        for name in names:
            files = self._storage.names(SAVES, name)
            keep_ticket = name == names[-1]
            swept_before = keep_ticket and set(files) <= {_TICKET}
            if name != self._open and MANIFEST not in files and not swept_before:
                self._clear(name, keep_ticket)
                swept.append(name)
        return swept

    def _clear(self, name: str, keep_ticket: bool) -> None:
        """Delete a save's files, the manifest first: what is half deleted is invisible."""
        files = self._storage.names(SAVES, name)
        for file in sorted(files, key=lambda file: file != MANIFEST):
            if not (keep_ticket and file == _TICKET):
                self._storage.delete(SAVES, name, file)
                if file == MANIFEST:
                    self._storage.sync_directory(SAVES, name)
        if not keep_ticket:
            self._storage.delete_directory(SAVES, name)
