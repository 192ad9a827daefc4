"""Rows of an array in NumPy's file format, read where they are: nothing but the wanted rows is loaded.

The format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import struct
import zipfile
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from trainer.data.errors import DataError

_LOCAL_HEADER: Final = struct.Struct("<26xHH")  # lengths of name and extra field, at the end of a zip's local header


class NpyRows:
    """A C-ordered array at ``start`` of an open file; the first axis is the row."""

    def __init__(self, file: BinaryIO, path: str, start: int = 0) -> None:
        """Reads the array's header.

        Raises:
            DataError: not an array, or one of Python objects or in Fortran order.
        """
        self._file, self._path = file, path
        file.seek(start)
        try:
            version = npy_format.read_magic(file)
            read_header = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
            self.shape, fortran, self.dtype = read_header(file)
        except ValueError as error:
            raise DataError(path, f"is not an .npy array ({error})") from error
        if fortran and len(self.shape) > 1:
            raise DataError(path, "is stored column by column; save it with np.save(path, np.ascontiguousarray(array))")
        if self.dtype.hasobject or not self.shape:
            raise DataError(path, f"holds {self.dtype} of shape {self.shape}; wanted are rows of numbers")
        self._start = file.tell()
        self._row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def rows(self) -> int:
        """Length of the first axis."""
        return int(self.shape[0])

    def read(self, start: int, end: int) -> NDArray[Any]:
        """Rows ``[start, end)``."""
        out = np.empty((end - start, *self.shape[1:]), dtype=self.dtype)
        self._file.seek(self._start + start * self._row_bytes)
        view = memoryview(out.reshape(-1).view(np.uint8).data)
        while view:
            read = self._file.readinto(view)  # type: ignore[attr-defined]
            if not read:
                raise DataError(self._path, f"ends before row {end} of {self.rows}: the file is truncated")
            view = view[read:]
        return out


def zip_members(file: BinaryIO, path: str) -> dict[str, int]:
    """Where each array of an .npz file starts, by its name without ``.npy``.

    Raises:
        DataError: not an .npz file, or a compressed one, in which single rows cannot be found.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except zipfile.BadZipFile as error:
        raise DataError(path, f"is not an .npz file ({error})") from error
    starts = {}
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED:
            raise DataError(path, "is compressed; write it with np.savez, not np.savez_compressed")
        file.seek(entry.header_offset)
        name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        starts[entry.filename.removesuffix(".npy")] = (
            entry.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
        )
    return starts
