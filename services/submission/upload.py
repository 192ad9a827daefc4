"""What of a working directory would travel with a job, and whether that is sane. Pure but for reading the directory."""

from __future__ import annotations

import fnmatch
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ALWAYS_EXCLUDED = (".git", ".venv", "runs", "*.egg-info", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache")
"""Never part of a job: history, the environment, other runs' results, caches."""

MAX_UPLOAD_BYTES = 50 * 2**20
"""Above this something is in the directory that should not travel; Ray's own limit is 500 MiB."""

_LISTED = 5


class UploadTooLargeError(ValueError):
    """The working directory is too large to travel; the message lists its largest files."""


@dataclass(frozen=True, slots=True)
class Upload:
    """Files that travel: number, bytes, and the largest ones as (path, bytes)."""

    files: int
    size_bytes: int
    largest: tuple[tuple[str, int], ...]

    def check(self, limit_bytes: int = MAX_UPLOAD_BYTES) -> None:
        """Raise ``UploadTooLargeError`` over ``limit_bytes``."""
        if self.size_bytes > limit_bytes:
            listed = "\n  ".join(f"{size / 2**20:8.1f} MiB  {path}" for path, size in self.largest)
            raise UploadTooLargeError(
                f"the working directory has {self.files} files, {self.size_bytes / 2**20:.1f} MiB; at most "
                f"{limit_bytes / 2**20:.0f} MiB travel with a job. The largest:\n  {listed}\n"
                "name data by a path the cluster sees, and leave files out with .gitignore or --exclude"
            )


def measure(directory: Path, excludes: Sequence[str] = ()) -> Upload:
    """What ``directory`` would upload: as Ray does it, ``.gitignore`` is honoured.

    Raises:
        FileNotFoundError: no such directory.
    """
    if not directory.is_dir():
        raise FileNotFoundError(f"working directory {directory} does not exist")
    patterns = (*ALWAYS_EXCLUDED, *excludes)
    sizes = [(path, (directory / path).stat().st_size) for path in _files(directory) if not _excluded(path, patterns)]
    largest = sorted(sizes, key=lambda item: -item[1])[:_LISTED]
    return Upload(len(sizes), sum(size for _, size in sizes), tuple(largest))


def _files(directory: Path) -> Iterator[str]:
    git = subprocess.run(
        ["git", "-C", str(directory), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    )
    if git.returncode == 0:
        yield from (name for name in os.fsdecode(git.stdout).split("\0") if name and (directory / name).is_file())
        return
    for folder, _, names in os.walk(directory):
        yield from (str((Path(folder) / name).relative_to(directory)) for name in names)


def _excluded(path: str, patterns: Sequence[str]) -> bool:
    return any(
        fnmatch.fnmatch(part, pattern) or fnmatch.fnmatch(path, pattern)
        for part in Path(path).parts
        for pattern in patterns
    )
