"""What can go wrong with saves; each message says what, where, the numbers and the remedy."""

from __future__ import annotations


class CheckpointError(Exception):
    """Base of all errors of saving and restoring."""


class SaveNotFound(CheckpointError):
    """No save of that name is in the store."""


class SaveIncomplete(CheckpointError):
    """A save's directory is there, but not all of the save: it was never committed, or a file is gone or short."""


class SaveCorrupt(CheckpointError):
    """What was read is not what was written."""


class SaveRefused(CheckpointError):
    """The request contradicts itself or the store: a save under way, a wrong parent, rows missing from a full save."""


class EncodingError(CheckpointError):
    """Rows cannot be stored in the encoding that was asked for."""


class StorageError(CheckpointError):
    """The storage failed, and went on failing when it was tried again."""


class StorageFull(StorageError):
    """No space, or no quota, is left."""


class StorageDenied(StorageError):
    """Permission denied, or a read-only file system."""


class StorageSlow(StorageError):
    """The storage did not take the bytes in the time allowed."""
