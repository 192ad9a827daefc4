"""Trying again when storage fails, and saying clearly what failed when trying again does not help."""

from __future__ import annotations

import errno
import math
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from checkpoint.errors import CheckpointError, StorageDenied, StorageError, StorageFull

_Result = TypeVar("_Result")

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_HOPELESS = (
    _FULL
    | _DENIED
    | {errno.EFBIG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP}
)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter (Brooker, AWS Architecture Blog, 2015)."""

    attempts: int = 5
    first_delay_s: float = 0.1
    max_delay_s: float = 5.0

    def __post_init__(self) -> None:
        if not (self.attempts >= 1 and 0 <= self.first_delay_s <= self.max_delay_s < math.inf):
            raise ValueError(f"{self}: attempts must be ≥ 1 and 0 ≤ first_delay_s ≤ max_delay_s")

    def delay_s(self, failures: int) -> float:
        """Longest pause after the ``failures``-th failure in a row."""
        return float(min(self.max_delay_s, self.first_delay_s * 2.0 ** (failures - 1)))

    def call(self, action: Callable[[], _Result], what: str, where: str) -> _Result:
        """Run ``action`` (which may run several times) until it succeeds.

        Args:
            action: the effect; must be safe to repeat.
            what: for the message, such as ``write 4,194,304 bytes at 0``.
            where: path or URL.

        Raises:
            FileNotFoundError: as it comes; what an absent file means is for the caller to say.
            StorageFull: no space or quota, or the file would be too large; not tried again, as waiting frees nothing.
            StorageDenied: permission denied or read-only; not tried again.
            StorageError: anything else, after all attempts.
        """
        for failures in range(1, self.attempts + 1):
            try:
                return action()
            except (FileNotFoundError, CheckpointError):
                raise
            except Exception as error:  # object stores raise kinds of their own
                if _is_hopeless(error):
                    raise translated(error, what, where) from error
                if failures == self.attempts:
                    raise translated(error, f"{what}, tried {self.attempts} times", where) from error
                time.sleep(random.uniform(0, self.delay_s(failures)))
        raise AssertionError("unreachable")


def translated(error: Exception, what: str, where: str) -> StorageError:
    """The error as one of ours, with what can be done about it."""
    number = getattr(error, "errno", None)
    reason = f"{where}: could not {what}: {type(error).__name__}: {error}"
    if number in _FULL:
        return StorageFull(f"{reason}{_space(where)}. Free some, or keep fewer saves (checkpoint.retention)")
    if number == errno.EFBIG:
        return StorageFull(f"{reason}. Raise the limit of this process (ulimit -f), or set another storage_path")
    if number in _DENIED or isinstance(error, PermissionError):
        return StorageDenied(f"{reason}. Make it writable for this user, or set another storage_path")
    return StorageError(reason)


def _is_hopeless(error: Exception) -> bool:
    return getattr(error, "errno", None) in _HOPELESS or isinstance(error, PermissionError | ValueError | TypeError)


def _space(where: str) -> str:
    """Free bytes of a local path's file system, for the message."""
    path = where.removeprefix("file://")
    while path.startswith("/"):
        try:
            usage = shutil.disk_usage(path)
        except OSError:
            path = path.rstrip("/").rpartition("/")[0] or "/"
            continue
        return f" ({usage.free:,} of {usage.total:,} bytes are free)"
    return ""
