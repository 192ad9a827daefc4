"""The few things a store does with a file system: durable on local ones, one put an object on others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from checkpoint.errors import SaveCorrupt, StorageError
from checkpoint.retry import RetryPolicy, translated

_TEMPORARY = ".tmp"


class Storage:
    """Paths relative to one URL. Every call is tried again as ``retry`` says and raises our errors.

    Raises:
        FileNotFoundError: from calls that read, when nothing is there.
        StorageError: and its kinds, from all calls.
    """

    def __init__(self, url: str, retry: RetryPolicy, options: dict[str, Any] | None = None) -> None:
        self.url = url.rstrip("/")
        self.retry = retry
        fs, self.root = fsspec.url_to_fs(self.url, **(options or {}))
        self.fs: Any = fs
        self.is_local = isinstance(fs, LocalFileSystem)

    def path(self, *parts: str) -> str:
        """Full path, as the file system wants it."""
        return "/".join((self.root, *parts))

    def make_directory(self, *parts: str) -> None:
        """Create a directory (its parents, too) so that it survives a power cut; nothing on object stores."""
        if self.is_local:
            path = self.path(*parts)
            self.retry.call(lambda: _make_durable(path), "create the directory", path)

    def claim_directory(self, *parts: str) -> bool:
        """As ``make_directory``, for one caller of many: False where somebody has it already.

        Object stores have no directories: there it is always True.
        """
        if not self.is_local:
            return True
        path = self.path(*parts)
        self.make_directory(*parts[:-1])
        return self.retry.call(lambda: _claim(path), "create the directory", path)

    def is_directory(self, *parts: str) -> bool:
        """Whether a name that ``names`` gave is a directory; taken for granted on object stores."""
        return not self.is_local or os.path.isdir(self.path(*parts))

    def write(self, data: bytes, *parts: str) -> None:
        """Write a whole small file: a reader finds all of it or nothing."""
        path = self.path(*parts)
        put = (lambda: _replace(path, data)) if self.is_local else (lambda: self.fs.pipe_file(path, data))
        try:
            self.retry.call(put, f"write {len(data):,} bytes", path)
        except FileNotFoundError as error:
            raise StorageError(gone(path)) from error

    def read(self, *parts: str) -> bytes:
        """The whole of a small file.

        Raises:
            SaveCorrupt: it is a directory.
        """
        path = self.path(*parts)
        return self.retry.call(lambda: self._read(path), "read", path)

    def size(self, *parts: str) -> int:
        """Bytes of a file."""
        path = self.path(*parts)
        return int(self.retry.call(lambda: self._fresh().info(path)["size"], "look up the size", path))

    def open(self, *parts: str) -> BinaryIO:
        """Open a file for reading; ranges can be read without the rest."""
        path = self.path(*parts)
        return cast(BinaryIO, self.retry.call(lambda: self.fs.open(path, "rb"), "open", path))

    def names(self, *parts: str) -> list[str]:
        """Names of files and directories in a directory, sorted; none when it does not exist."""
        path = self.path(*parts)
        try:
            found = self.retry.call(lambda: self._fresh().ls(path, detail=False), "list", path)
        except FileNotFoundError:
            return []
        return sorted({str(name).rstrip("/").rpartition("/")[2] for name in found})

    def delete(self, *parts: str) -> None:
        """Delete a file, if it is there."""
        path = self.path(*parts)
        with contextlib.suppress(FileNotFoundError):
            self.retry.call(lambda: self.fs.rm_file(path), "delete", path)

    def delete_directory(self, *parts: str) -> None:
        """Delete an empty directory, if it is there; nothing on object stores."""
        path = self.path(*parts)
        if self.is_local:
            with contextlib.suppress(FileNotFoundError):
                self.retry.call(lambda: os.rmdir(path), "delete the directory", path)

    def sync_directory(self, *parts: str) -> None:
        """Make what was created or renamed in a directory survive a power cut."""
        if self.is_local:
            path = self.path(*parts)
            try:
                sync_directory(path)
            except FileNotFoundError as error:
                raise StorageError(gone(f"{path}/")) from error
            except OSError as error:
                raise translated(error, "sync the directory", path) from error

    def _read(self, path: str) -> bytes:
        try:
            return cast(bytes, self.fs.cat_file(path))
        except NotADirectoryError as error:  # a file where there should be a directory: what is asked for is not there
            raise FileNotFoundError(path) from error
        except IsADirectoryError as error:
            raise SaveCorrupt(f"{path} is a directory, and should be a file") from error

    def _fresh(self) -> Any:
        self.fs.invalidate_cache()
        return self.fs


def gone(path: str) -> str:
    """What it means when a directory that one writes to is not there any more."""
    return (
        f"{os.path.dirname(path)} is gone: the save was given up by somebody else, such as a coordinator that was "
        "started again and swept what it did not know"
    )


def sync_directory(path: str) -> None:
    """fsync a local directory.

    Raises:
        StorageError: it failed.
    """
    with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        sync(descriptor, path)


def sync(descriptor: int, path: str) -> None:
    """fsync, once: after it has failed the kernel calls the pages clean that it could not write, and a second fsync
    would succeed without them (Rebello et al., USENIX ATC 2020).

    Raises:
        StorageError: it failed.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise translated(error, "fsync (not tried again, as what was not written is forgotten)", path) from error


def _make_durable(path: str) -> None:
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for new in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(new)
        sync_directory(os.path.dirname(new))


def _claim(path: str) -> bool:
    try:
        os.mkdir(path)
    except FileExistsError:
        return False
    sync_directory(os.path.dirname(path))
    return True


def _replace(path: str, data: bytes) -> None:
    """Write beside, fsync, rename, fsync the directory: at no instant is there half a file under ``path``."""
    temporary = path + _TEMPORARY
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    with _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        sync(descriptor, temporary)
    os.replace(temporary, path)
    sync_directory(os.path.dirname(path))


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
