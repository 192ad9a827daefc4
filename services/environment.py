"""Errors that come from a broken installation, in one line with the remedy."""

from __future__ import annotations

_REMEDY = "run `penumbra doctor` there: it says what to install"


def broken_environment(error: BaseException) -> str | None:
    """What to say when a package or one of its libraries cannot be loaded; ``None`` for any other error."""
    missing = isinstance(error, ImportError) or (isinstance(error, OSError) and ".so" in str(error))
    return f"this environment cannot train ({type(error).__name__}: {error}); {_REMEDY}" if missing else None


def failed_start(message: str) -> str:
    """One line from what Ray tells about an actor whose constructor raised: the traceback's last line.

    Ray gives text, not the exception.
    """
    last = message.strip().splitlines()[-1].strip()
    broken = last.startswith(("ImportError", "ModuleNotFoundError")) or (last.startswith("OSError") and ".so" in last)
    return f"it could not start ({last})" + (f"; {_REMEDY}" if broken else "")
