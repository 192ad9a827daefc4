"""Local paths and fsspec URLs (``s3://``, ``gs://``, ``memory://`` …) behind one set of calls."""

from __future__ import annotations

import contextlib
import glob
import io
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit

import fsspec

from trainer.data.errors import DataError

_LOCAL = ("file://", "local://")


def is_url(path: str) -> bool:
    """True for what fsspec opens; ``file://`` counts as a local path once ``normal`` has seen it."""
    return "://" in path


def normal(path: str) -> str:
    """The one spelling of a path: absolute for local files, with its protocol for others."""
    if path.startswith(_LOCAL):
        path = unquote(urlsplit(path).path)
    if not is_url(path):
        return os.path.abspath(os.path.expanduser(path))
    system, inner = _system(path)
    return str(system.unstrip_protocol(inner))


def exists(path: str) -> bool:
    """Whether there is a file or directory."""
    if not is_url(path):
        return os.path.exists(path)
    with _remote(path) as (system, inner):
        return bool(system.exists(inner))


def is_directory(path: str) -> bool:
    """Whether it is a directory (in an object store: whether something begins with it)."""
    if not is_url(path):
        return os.path.isdir(path)
    with _remote(path) as (system, inner):
        return bool(system.isdir(inner))


def list_files(directory: str) -> list[str]:
    """Paths of the files directly in a directory, in any order."""
    if not is_url(directory):
        with os.scandir(directory) as entries:
            return [entry.path for entry in entries if entry.is_file()]
    with _remote(directory) as (system, inner):
        found = system.ls(inner, detail=True)
        return [str(system.unstrip_protocol(info["name"])) for info in found if info["type"] == "file"]


def match(pattern: str) -> list[str]:
    """Paths that match a glob (``**`` goes down), in any order."""
    if not is_url(pattern):
        return glob.glob(pattern, recursive=True)
    with _remote(pattern) as (system, inner):
        return [str(system.unstrip_protocol(path)) for path in system.glob(inner)]


def stamp(path: str) -> tuple[int, str]:
    """Size in bytes and a token that changes with the content; tells whether a file is still the same one.

    Raises:
        DataError: no such file.
    """
    if is_url(path):
        with _remote(path) as (system, inner):
            return int(system.info(inner)["size"]), str(system.ukey(inner))
    try:
        status = os.stat(path)
    except FileNotFoundError as error:
        raise DataError(path, "no such file") from error
    return status.st_size, str(status.st_mtime_ns)


def open_file(path: str) -> BinaryIO:
    """A seekable stream of bytes; local files are not buffered.

    Raises:
        DataError: no such file, no access to it, or a protocol that is not installed.
    """
    if is_url(path):
        with _remote(path) as (system, inner):
            if path.startswith("memory://"):  # hands out one shared object, position and all
                return io.BytesIO(system.cat_file(inner))
            return cast(BinaryIO, system.open(inner, "rb"))
    try:
        return cast(BinaryIO, open(path, "rb", buffering=0))
    except FileNotFoundError as error:
        raise DataError(path, "no such file") from error


@contextlib.contextmanager
def _remote(url: str) -> Iterator[tuple[Any, str]]:
    """The file system behind a URL and the path in it; what its driver raises becomes a ``DataError``."""
    try:
        yield _system(url)
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(url, "no such file") from error
    except PermissionError as error:
        raise DataError(
            url, f"access denied ({error}); check the credentials and the rights of who runs this (docs/data.md)"
        ) from error
    except Exception as error:  # every driver has its own kinds of error
        raise DataError(
            url,
            f"cannot be reached ({type(error).__name__}: {error}); check credentials and endpoint (docs/data.md)",
        ) from error


def _system(url: str) -> tuple[Any, str]:
    try:
        system, inner = fsspec.core.url_to_fs(url)
    except ImportError as error:
        package = getattr(error.__cause__, "name", None) or "the one it names"
        raise DataError(url, f"this kind of address needs another package: pip install {package} ({error})") from error
    except ValueError as error:
        raise DataError(url, f"no such kind of address ({error}); local files need no prefix") from error
    return system, str(inner)
