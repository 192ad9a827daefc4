"""What goes wrong with input as a whole. Single bad lines are quarantined instead (see ``block.RejectedLine``)."""

from __future__ import annotations


class DataError(ValueError):
    """Input that cannot be read: missing, empty, truncated, of another format, changed since it was planned."""

    def __init__(self, path: str, problem: str) -> None:
        """Both arguments stay in ``args``, so the error survives pickling between processes."""
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"
