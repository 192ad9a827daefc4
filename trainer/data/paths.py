"""Files behind `data.train`, `data.eval`, `data.predict`: paths, directories, globs, URLs, in name (= time) order."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Sequence

from trainer.data import files
from trainer.data.errors import DataError


def name_order(path: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that reads numbers as numbers: ``day_2`` comes before ``day_10``."""
    parts = re.split(r"(\d+)", path)
    return tuple((1, int(part), part) if part.isdigit() and part.isascii() else (0, 0, part) for part in parts)


def resolve_files(patterns: str | Sequence[str], suffixes: Sequence[str]) -> list[str]:
    """Absolute paths or URLs of all files; the order of the patterns is kept, files within one are in name order.

    Args:
        patterns: files (taken whatever their name), directories and globs.
        suffixes: what data files in a directory end in; ``""`` admits names without a dot. Hidden files and those
            that begin with ``_`` (``_SUCCESS``) are skipped.

    Raises:
        DataError: a pattern that matches nothing, a directory without data, a file that is named twice.
    """
    found: list[str] = []
    for pattern in (patterns,) if isinstance(patterns, str) else patterns:
        for path in _matches(pattern):
            found += _files_in(path, suffixes) if files.is_directory(path) else [path]
    return _each_once(found)


def resolve_directories(patterns: str | Sequence[str]) -> list[str]:
    """Absolute paths of the directories behind ``patterns``, for formats whose unit is a directory.

    Raises:
        DataError: a pattern that matches nothing or a file, a directory that is named twice.
    """
    found = [path for pattern in ((patterns,) if isinstance(patterns, str) else patterns) for path in _matches(pattern)]
    for path in found:
        if not os.path.isdir(path):
            raise DataError(path, "is a file; this data.format takes the directory that holds it")
    return _each_once(found)


def _each_once(paths: list[str]) -> list[str]:
    for path, count in Counter(paths).items():
        if count > 1:
            raise DataError(path, f"is named {count} times in one data setting; its rows would be read as often")
    return paths


def _matches(pattern: str) -> list[str]:
    pattern = files.normal(pattern)
    if files.exists(pattern):
        return [pattern]
    found = sorted((path for path in files.match(pattern) if not _hidden(path)), key=name_order)
    if not found:
        kind = "no file matches this pattern" if glob.has_magic(pattern) else "no such file or directory"
        raise DataError(pattern, f"{kind}; check data.train, data.eval and data.predict")
    return found


def _files_in(directory: str, suffixes: Sequence[str]) -> list[str]:
    present = [path for path in files.list_files(directory) if not _hidden(path)]
    data = [path for path in present if _admitted(os.path.basename(path), suffixes)]
    if not data:
        wanted = ", ".join(suffix or "no suffix" for suffix in suffixes)
        others = sorted({os.path.splitext(path)[1] or "no suffix" for path in present})
        holds = f"it holds files with {', '.join(others)}: is data.format right?" if others else "it holds no files"
        raise DataError(directory, f"directory without data files ({wanted}); {holds}")
    return sorted(data, key=name_order)


def _admitted(name: str, suffixes: Sequence[str]) -> bool:
    """A suffix may be longer than what follows the last dot (``_dense.npy``); ``""`` stands for no dot at all."""
    return any(name.endswith(suffix) if suffix else "." not in name for suffix in suffixes)


def _hidden(path: str) -> bool:
    return os.path.basename(path).startswith((".", "_"))
