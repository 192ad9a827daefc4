"""SaveCatalog: what a store holds, for readers. A save is visible once its manifest is there, and not before."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from checkpoint.errors import CheckpointError, SaveCorrupt, SaveIncomplete, SaveNotFound
from checkpoint.manifest import MANIFEST, FileEntry, Manifest
from checkpoint.manifest_file import from_text
from checkpoint.retry import RetryPolicy
from checkpoint.steady_file import SteadyFile
from checkpoint.storage import Storage
from checkpoint.ticket import parse_save_id
from checkpoint.timelines import REMEDY, TimelineRecord, horizon, is_within, timeline_of, visible

SAVES: Final = "saves"
TIMELINES: Final = "timelines"

SaveIds: TypeAlias = list[str]
Saves: TypeAlias = list[Manifest]


class SaveCatalog:
    """Lists and opens the saves of one run under one URL; changes nothing.

    Args:
        url: ``/path``, ``file://``, ``s3://``, ``gs://``, ``memory://``…, whatever fsspec knows.
        run: the run's name; saves of another run under the same URL are refused.
        retry: how failures of the storage are tried again.
        storage_options: given to fsspec.
    """

    def __init__(
        self,
        url: str,
        *,
        run: str,
        retry: RetryPolicy | None = None,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self.run = run
        self._storage = Storage(url, retry or RetryPolicy(), storage_options)
        self._read: dict[str, Manifest] = {}  # complete saves never change

    @property
    def url(self) -> str:
        """Where the saves are."""
        return self._storage.url

    def list(self, timeline: int | None = None) -> Saves:
        """Complete saves that are visible from ``timeline`` (``None``: the newest), oldest first.

        Saves whose manifest cannot be read are left out; ``incomplete`` and ``damaged`` name them.

        Raises:
            SaveCorrupt: a record of a timeline is missing or damaged, so that nobody can say what is visible.
        """
        records = self._timeline_records()
        complete = self._complete().values()
        youngest = max(complete, key=lambda save: save.timeline, default=None)
        newest = max(records, default=0)
        if youngest is not None and youngest.timeline > newest:
            raise SaveCorrupt(
                f"{self._record_path(youngest.timeline)} is missing: {youngest.save_id} is of it. {REMEDY}"
            )
        if timeline is not None and timeline > newest:
            raise SaveNotFound(f"{self.url}: timeline {timeline} was never opened; the newest is {newest}")
        return visible(complete, horizon(records, newest if timeline is None else timeline))

    def list_all(self) -> Saves:
        """Complete saves of all timelines, hidden ones, too; oldest first."""
        return sorted(self._complete().values(), key=lambda save: save.sequence)

    def incomplete(self) -> SaveIds:
        """Ids of saves without a manifest: under way, given up or crashed. Nobody reads them."""
        return [name for name, error in self._faults().items() if not isinstance(error, SaveCorrupt)]

    def damaged(self) -> dict[str, str]:
        """Saves that were complete and whose manifest cannot be read: id → what is wrong. Hidden ones are left out."""
        try:
            records = self._timeline_records()
            sight = horizon(records, max(records, default=0))
        except SaveCorrupt:  # which says more than enough; here it hides nothing
            sight = None
        found = {}
        for name, error in self._faults().items():
            timeline, sequence, _ = parse_save_id(name) or (0, 0, "")
            if isinstance(error, SaveCorrupt) and (sight is None or is_within(sight, timeline, sequence)):
                found[name] = str(error)
        return found

    def read_manifest(self, save_id: str) -> Manifest:
        """The manifest of a complete save, whether visible or hidden.

        Raises:
            SaveNotFound: there is nothing of that name.
            SaveIncomplete: it has no manifest.
            SaveCorrupt: its manifest is damaged, or is that of another save.
        """
        if save_id in self._read:
            return self._read[save_id]
        where = f"{self.url}/{SAVES}/{save_id}/{MANIFEST}"
        try:
            manifest = from_text(self._storage.read(SAVES, save_id, MANIFEST), where)
        except FileNotFoundError:
            directories = self._directories()
            if save_id in directories:
                raise SaveIncomplete(f"{where} is missing: save {save_id} was never completed") from None
            known = ", ".join(directories[-5:]) or "none"
            raise SaveNotFound(f"no save {save_id!r} under {self.url}; the newest there: {known}") from None
        if (manifest.save_id, manifest.run) != (save_id, self.run):
            raise SaveCorrupt(
                f"{where} is of save {manifest.save_id} of run {manifest.run!r}, expected {save_id} of {self.run!r}"
            )
        self._read[save_id] = manifest
        return manifest

    def open_file(self, save_id: str, entry: FileEntry) -> SteadyFile:
        """Open a file of a save for reading; reads that fail are tried again.

        Raises:
            SaveIncomplete: it is gone, or has another size than its manifest says.
            StorageError: it cannot be opened.
        """
        where = f"{self.url}/{SAVES}/{save_id}/{entry.path}"
        try:
            size = self._storage.size(SAVES, save_id, entry.path)
            if size != entry.bytes:
                raise SaveIncomplete(f"{where}: {size:,} bytes, its manifest says {entry.bytes:,}: torn")
            return SteadyFile(self._storage.open(SAVES, save_id, entry.path), self._storage.retry, where)
        except FileNotFoundError:
            raise SaveIncomplete(f"{where} is missing, and its manifest names it") from None

    def _directories(self) -> SaveIds:
        return [name for name in self._storage.names(SAVES) if parse_save_id(name)]

    def _complete(self) -> dict[str, Manifest]:
        """All complete saves by id."""
        found = {}
        for name in self._directories():
            try:
                found[name] = self.read_manifest(name)
            except (SaveCorrupt, SaveIncomplete, SaveNotFound):
                continue
        return found

    def _faults(self) -> dict[str, CheckpointError]:
        """Why the saves that are not complete are not, by id."""
        found: dict[str, CheckpointError] = {}
        for name in self._directories():
            try:
                self.read_manifest(name)
            except SaveNotFound:  # deleted meanwhile
                continue
            except (SaveCorrupt, SaveIncomplete) as error:
                found[name] = error
        return found

    def _timeline_records(self) -> dict[int, TimelineRecord]:
        """All of them, from 1 on without a gap.

        Raises:
            SaveCorrupt: one is missing or damaged.
        """
        numbers = {number: name for name in self._storage.names(TIMELINES) if (number := timeline_of(name))}
        found = {}
        for number in range(1, max(numbers, default=0) + 1):
            where = self._record_path(number)
            if number not in numbers:
                raise SaveCorrupt(f"{where} is missing, though timeline {max(numbers)} was opened later. {REMEDY}")
            found[number] = TimelineRecord.from_text(self._storage.read(TIMELINES, numbers[number]), number, where)
        return found

    def _record_path(self, timeline: int) -> str:
        return f"{self.url}/{TIMELINES}/{timeline:04d}.json"
