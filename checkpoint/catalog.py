"""SaveCatalog: what a store holds, for readers. A save is visible once its manifest is there, and not before."""

from __future__ import annotations

from typing import Any, BinaryIO, Final, TypeAlias

from checkpoint.errors import SaveCorrupt, SaveIncomplete, SaveNotFound
from checkpoint.manifest import MANIFEST, FileEntry, Manifest
from checkpoint.manifest_file import from_text
from checkpoint.retry import RetryPolicy
from checkpoint.storage import Storage
from checkpoint.ticket import parse_save_id
from checkpoint.timelines import TimelineRecord, horizon, visible

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

        Saves whose manifest cannot be read are left out; ``incomplete`` names them.
        """
        records = self._timeline_records()
        sight = horizon(records, max(records, default=0) if timeline is None else timeline)
        return visible(self._complete().values(), sight)

    def incomplete(self) -> SaveIds:
        """Ids of saves that are not complete: under way, given up, crashed, or with a damaged manifest."""
        complete = self._complete()
        return [name for name in self._directories() if name not in complete]

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

    def open_file(self, save_id: str, entry: FileEntry) -> BinaryIO:
        """Open a file of a save for reading.

        Raises:
            SaveIncomplete: it is gone, or has another size than its manifest says.
        """
        where = f"{self.url}/{SAVES}/{save_id}/{entry.path}"
        try:
            size = self._storage.size(SAVES, save_id, entry.path)
            if size != entry.bytes:
                raise SaveIncomplete(f"{where}: {size:,} bytes, its manifest says {entry.bytes:,}: torn")
            return self._storage.open(SAVES, save_id, entry.path)
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

    def _timeline_records(self) -> dict[int, TimelineRecord]:
        found = {}
        for name in self._storage.names(TIMELINES):
            if name.endswith(".json"):
                record = TimelineRecord.model_validate_json(self._storage.read(TIMELINES, name))
                found[record.timeline] = record
        return found
