"""Reads a file of a save front to back, wanted ranges into given memory, and checks its checksum on the way."""

from __future__ import annotations

from typing import Final

import torch
import xxhash
from torch import Tensor

from checkpoint.errors import SaveCorrupt
from checkpoint.steady_file import ReadableFile

_ALGORITHM: Final = "xxh3_128"
_BLOCK_BYTES: Final = 1 << 20
"""Read, then hashed while it is still in the cache."""


class CheckedReader:
    """One pass over one file. ``peek`` may look anywhere; ``read_into`` goes forward only.

    Args:
        file: open for reading.
        checksum: ``xxh3_128:hexdigest`` of the whole file, or ``None`` to check nothing: then what is not wanted is
            skipped, else it is read, too.
        where: the file's name for messages.
    """

    def __init__(self, file: ReadableFile, file_bytes: int, checksum: str | None, where: str) -> None:
        self._file = file
        self._bytes = file_bytes
        self._where = where
        self._hash: xxhash.xxh3_128 | None = None
        self._expected = ""
        if checksum is not None:
            algorithm, _, self._expected = checksum.partition(":")
            if algorithm != _ALGORITHM:
                raise SaveCorrupt(f"{where}: checksum {checksum!r} is not of the kind {_ALGORITHM}")
            self._hash = xxhash.xxh3_128()
        self._offset = 0
        file.seek(0)
        self._waste = memoryview(bytearray(_BLOCK_BYTES))
        self.bytes_read = 0

    def peek(self, start: int, out: Tensor) -> None:
        """Fill ``out`` (contiguous) from the bytes at ``start``, out of order and unchecked."""
        self._file.seek(start)
        self._fill(byte_view(out))
        self._file.seek(self._offset)

    def read_into(self, start: int, out: Tensor) -> None:
        """Fill ``out`` (contiguous) from the bytes at ``start``, which is not before the end of the last read."""
        self._pass_over(start)
        view = byte_view(out)
        for begin in range(0, len(view), _BLOCK_BYTES):
            self._block(view[begin : begin + _BLOCK_BYTES])

    def finish(self) -> None:
        """Read what is left and compare.

        Raises:
            SaveCorrupt: the checksum is another.
        """
        self._pass_over(self._bytes)
        if self._hash is not None and self._hash.hexdigest() != self._expected:
            raise SaveCorrupt(
                f"{self._where}: checksum {_ALGORITHM}:{self._hash.hexdigest()} of its {self._bytes} bytes, but "
                f"{_ALGORITHM}:{self._expected} was written: the file was damaged"
            )

    def _pass_over(self, start: int) -> None:
        if self._hash is None:
            if start != self._offset:
                self._file.seek(start)
                self._offset = start
            return
        while self._offset < start:
            self._block(self._waste[: start - self._offset])

    def _block(self, view: memoryview) -> None:
        self._fill(view)
        self._offset += len(view)
        if self._hash is not None:
            self._hash.update(view)

    def _fill(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            count = self._file.readinto(view[done:])
            if not count:
                raise SaveCorrupt(f"{self._where}: ends before byte {self._bytes}")
            done += count
        self.bytes_read += done


def byte_view(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    flat = tensor.detach().view(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    return flat.numpy().data
