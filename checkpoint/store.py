"""CheckpointStore: begins, commits and deletes the saves of one run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import JsonValue

from checkpoint.catalog import SAVES, TIMELINES, SaveCatalog, SaveIds
from checkpoint.chain import choose
from checkpoint.completeness import check_files
from checkpoint.errors import CheckpointError, SaveIncomplete, SaveNotFound, SaveRefused, StorageError
from checkpoint.manifest import MANIFEST, FileEntry, Manifest, SaveKind, TableSpec
from checkpoint.manifest_file import to_text
from checkpoint.retention import RetentionPolicy, chains_of
from checkpoint.retry import RetryPolicy
from checkpoint.ticket import SaveTicket, parse_save_id, save_id
from checkpoint.timelines import TimelineRecord

_CLAIMS: Final = 10

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
        self._open: SaveTicket | None = None

    def begin(
        self,
        kind: SaveKind,
        *,
        timeline: int,
        samples: int,
        consistent: bool,
        tables: Mapping[str, TableSpec],
        parent: str | None,
        shards: Sequence[int] | None = None,
    ) -> SaveTicket:
        """Make room for a save; the shards write with the ticket, then ``commit``.

        Args:
            kind: full, priority or delta.
            timeline: the run's.
            samples: trained when the save begins.
            consistent: whether everything will be of one cut.
            tables: all whole tables of the model.
            parent: the save this one continues; ``None`` for a full one.
            shards: ids of those that own rows; ``commit`` asks for a file of each.

        Raises:
            SaveRefused: the last save was neither committed nor aborted, ``timeline`` is not the newest, ``parent``
                contradicts ``kind``, or cannot be continued: it is not whole, hidden, or has other tables; or a name
                is no Unicode text.
            SaveCorrupt: a record of a timeline is missing or damaged.
            StorageError: the directory cannot be made.
        """
        if self._open is not None:
            raise SaveRefused(
                f"save {self._open.save_id} is still under way: commit or abort it first; one at a time per run"
            )
        if (parent is None) != (kind == "full"):
            raise SaveRefused(f"a {kind} save {'continues no' if kind == 'full' else 'needs the'} save before it")
        _check_text([self.run, *tables], "the names of run and tables")
        self._check_lineage(kind, timeline, parent, tables)
        sequence, name = self._claim(kind, timeline)
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
            shards=None if shards is None else tuple(shards),
        )
        self._storage.write(ticket.model_dump_json().encode(), SAVES, name, _TICKET)
        self._open = ticket
        return ticket

    def commit(
        self, ticket: SaveTicket, files: Sequence[FileEntry], extra: Mapping[str, JsonValue] | None = None
    ) -> Manifest:
        """Make a save visible, once every file of every shard is durable.

        Raises:
            SaveIncomplete: a file is missing or has another size, a shard wrote none, or a full save lacks rows; the
                save stays invisible.
            SaveRefused: a file is named twice or leads elsewhere, the save was committed before, what it continues is
                not there any more, or hidden, or ``extra`` has text that is not Unicode.
            StorageError: the manifest could not be written, and the save is invisible; ``commit`` may be called again.
        """
        name = ticket.save_id
        if MANIFEST in self._storage.names(SAVES, name):
            raise SaveRefused(f"save {name} was committed before")
        _check_text(dict(extra or {}), f"save {name}: extra")
        check_files(ticket, files, lambda path: self._storage.size(SAVES, name, path))
        self._check_lineage(ticket.kind, ticket.timeline, ticket.parent, ticket.tables)
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
        text = to_text(manifest)
        try:
            self._storage.write(text, SAVES, name, MANIFEST)
        except StorageError:
            if not self._is_there(text, name):
                raise  # else it is visible, whatever failed after that, and a visible save has been committed
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
        self._storage.make_directory(TIMELINES)
        self._storage.write(record.to_text(), TIMELINES, record.file_name)
        return record.timeline

    def retain(self, policy: RetentionPolicy) -> SaveIds:
        """Delete complete saves that ``policy`` does not keep, and hidden ones, where a younger full save is visible.

        What the save under way continues is kept.
        Youngest first, so that a crash in between never leaves a save whose parent is gone.

        Returns:
            Ids of the deleted saves.
        """
        if policy.keep_last is None:
            return []
        seen = self.list()
        youngest_full = max((save.sequence for save in seen if save.kind == "full"), default=0)
        kept = policy.kept(seen)
        if self._open is not None and self._open.parent is not None:
            kept.update(chains_of(seen).get(self._open.parent, ()))
        doomed = sorted(
            (save for name, save in self._complete().items() if name not in kept and save.sequence < youngest_full),
            key=lambda save: -save.sequence,
        )
        newest = max(map(_sequence, self._directories()), default=0)
        for save in doomed:
            self._read.pop(save.save_id, None)
            self._clear(save.save_id, keep_ticket=save.sequence == newest)
        return [save.save_id for save in doomed]

    def sweep(self) -> SaveIds:
        """Delete what crashed and failed saves left; not the one under way, nor saves whose manifest is damaged.

        Only a save that this store began counts as under way. A store that is opened anew, as by a coordinator that was
        started again, sweeps the save its predecessor had under way: nobody could commit that any more, and the shards
        that still write to it are told that it is gone.
        The newest directory keeps its ticket, so that its sequence is not used again by anybody.

        Returns:
            Ids of the saves that were swept.

        Raises:
            StorageError: something could not be deleted; the rest was.
        """
        swept: list[str] = []
        errors: list[StorageError] = []
        under_way = None if self._open is None else self._open.save_id
        names = sorted(self._directories(), key=_sequence)
        for name in names:
            files = self._storage.names(SAVES, name)
            keep_ticket = name == names[-1]
            left = MANIFEST not in files and not (keep_ticket and set(files) <= {_TICKET})
            if name == under_way or not left or not self._storage.is_directory(SAVES, name):
                continue
            try:
                self._clear(name, keep_ticket)
                swept.append(name)
            except StorageError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return swept

    def _claim(self, kind: SaveKind, timeline: int) -> tuple[int, str]:
        """A sequence that nobody else has, and the name of the directory, which is made.

        Two stores may try for one sequence with different kinds, thus names: who sees the other gives way.
        """
        for _ in range(_CLAIMS):
            sequence = 1 + max(map(_sequence, self._directories()), default=0)
            name = save_id(timeline, sequence, kind)
            if not self._storage.claim_directory(SAVES, name):
                continue
            rivals = [other for other in self._directories() if other != name and _sequence(other) == sequence]
            if not rivals:
                return sequence, name
            self._storage.delete_directory(SAVES, name)
        raise SaveRefused(
            f"{self.url}: somebody else begins saves of run {self.run!r} all the time; one at a time per run"
        )

    def _check_lineage(
        self, kind: SaveKind, timeline: int, parent: str | None, tables: Mapping[str, TableSpec]
    ) -> None:
        """Raise unless a save of ``timeline`` that continues ``parent`` would be visible and whole."""
        newest = max(self._timeline_records(), default=0)
        if timeline != newest:
            raise SaveRefused(
                f"timeline {timeline} of run {self.run!r} is not the newest, {newest}: nobody would see a save of it"
            )
        if parent is None:
            return
        try:
            chain = choose(self.list(), save_id=parent).chain
        except (SaveNotFound, SaveIncomplete) as error:
            raise SaveRefused(f"a {kind} save cannot continue {parent}: {error}. Take a full save") from error
        for name in chain.save_ids:
            if MANIFEST not in self._storage.names(SAVES, name):
                self._read.pop(name, None)
                raise SaveRefused(f"a {kind} save cannot continue {parent}: {name} was deleted. Take a full save")
        if chain.tables != tables:
            raise SaveRefused(
                f"a {kind} save cannot continue {parent}: its tables are other ones, {sorted(chain.tables)} there and "
                f"{sorted(tables)} here, or of another size, type or optimizer. Take a full save"
            )

    def _is_there(self, manifest: bytes, name: str) -> bool:
        try:
            return self._storage.read(SAVES, name, MANIFEST) == manifest
        except (FileNotFoundError, CheckpointError):
            return False

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


def _sequence(name: str) -> int:
    """Of a save's directory."""
    parsed = parse_save_id(name)
    assert parsed is not None
    return parsed[1]


def _check_text(value: JsonValue, what: str) -> None:
    """Raise unless JSON in UTF-8 can hold it: a file name that is not UTF-8 comes with half characters.

    Pydantic would write such keys with other characters in their place, and refuse such values with an error of its own
    when everything is written already.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        part = error.object[max(0, error.start - 40) : error.end + 40]
        raise SaveRefused(f"{what} must be Unicode text, and {part!a} is not: rename it") from error
