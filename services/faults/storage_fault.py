"""What can be wrong with a storage, as data; pure. ``services.faults.storage`` does it."""

from __future__ import annotations

import errno
import os
import random
import zlib
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Operation = Literal["read", "write", "list", "delete"]

_Bytes = Annotated[int, Field(ge=0)]


class _StorageFault(BaseModel):
    """``match``: only paths of this shape (``*`` matches slashes, too). ``operations``: only these."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    match: str = "*"

    hits: ClassVar[frozenset[Operation]] = frozenset({"write"})

    def concerns(self, operation: Operation, path: str) -> bool:
        """Whether an operation is hit at all."""
        return operation in getattr(self, "operations", self.hits) and fnmatchcase(path, self.match)

    def delay_s(self, size_bytes: int) -> float:
        """How much longer the operation takes."""
        return 0.0

    def refusal(self, path: str, size_bytes: int, taken_bytes: int, rng: random.Random) -> OSError | None:
        """The error to raise; ``taken_bytes`` were written by this process since the fault began."""
        return None

    def altered(self, path: str, data: bytes) -> bytes:
        """What is stored in place of ``data``."""
        return data


class SlowStorage(_StorageFault):
    """Every operation takes ``s_per_operation`` longer, and bytes pass at ``bytes_per_s``."""

    kind: Literal["slow"]
    s_per_operation: Annotated[float, Field(ge=0.0)] = 0.0
    bytes_per_s: Annotated[float, Field(gt=0.0)] | None = None
    operations: tuple[Operation, ...] = ("read", "write", "list", "delete")

    @model_validator(mode="after")
    def _slows(self) -> SlowStorage:
        if not self.s_per_operation and self.bytes_per_s is None:
            raise ValueError("slow storage needs s_per_operation, bytes_per_s or both")
        return self

    def delay_s(self, size_bytes: int) -> float:
        """Seconds for one operation on ``size_bytes``."""
        return self.s_per_operation + (size_bytes / self.bytes_per_s if self.bytes_per_s else 0.0)


class FailingStorage(_StorageFault):
    """Operations fail with EIO: all, or the random ``share`` of them."""

    kind: Literal["error"]
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    operations: tuple[Operation, ...] = ("read", "write", "list", "delete")

    def refusal(self, path: str, size_bytes: int, taken_bytes: int, rng: random.Random) -> OSError | None:
        """EIO."""
        return _error(errno.EIO, path) if self.share == 1.0 or rng.random() < self.share else None


class FullStorage(_StorageFault):
    """Every process may write ``after_bytes`` more; what does not fit fails with ENOSPC, whole."""

    kind: Literal["full"]
    after_bytes: _Bytes = 0

    def refusal(self, path: str, size_bytes: int, taken_bytes: int, rng: random.Random) -> OSError | None:
        """ENOSPC."""
        return _error(errno.ENOSPC, path) if taken_bytes + size_bytes > self.after_bytes else None


class DeniedStorage(_StorageFault):
    """Operations fail with EACCES."""

    kind: Literal["denied"]
    operations: tuple[Operation, ...] = ("read", "write", "list", "delete")

    def refusal(self, path: str, size_bytes: int, taken_bytes: int, rng: random.Random) -> OSError | None:
        """EACCES."""
        return _error(errno.EACCES, path)


class ReadOnlyStorage(_StorageFault):
    """Writing and deleting fail with EROFS."""

    kind: Literal["read_only"]

    hits: ClassVar[frozenset[Operation]] = frozenset({"write", "delete"})

    def refusal(self, path: str, size_bytes: int, taken_bytes: int, rng: random.Random) -> OSError | None:
        """EROFS."""
        return _error(errno.EROFS, path)


class TornStorage(_StorageFault):
    """Of each file only the first ``after_bytes`` are stored, and success is reported.

    ``padded``: the rest reads as zeros, as after a power cut on a file system that had grown the file already.
    """

    kind: Literal["torn"]
    after_bytes: _Bytes = 0
    padded: bool = False

    def altered(self, path: str, data: bytes) -> bytes:
        """The beginning."""
        kept = data[: self.after_bytes]
        return kept.ljust(len(data), b"\0") if self.padded else kept


class CorruptStorage(_StorageFault):
    """One bit of each file that is written is stored flipped; which one depends on the path and ``seed``."""

    kind: Literal["corrupt"]
    seed: int = 0

    def altered(self, path: str, data: bytes) -> bytes:
        """One bit flipped."""
        if not data:
            return data
        rng = random.Random(zlib.crc32(path.encode()) ^ self.seed)
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(damaged)


StorageFault = Annotated[
    SlowStorage | FailingStorage | FullStorage | DeniedStorage | ReadOnlyStorage | TornStorage | CorruptStorage,
    Field(discriminator="kind"),
]


def _error(number: int, path: str) -> OSError:
    return OSError(number, f"{os.strerror(number)} (fault injected)", path)
