"""How a command ends: exit codes, and errors as one readable block instead of a traceback."""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec

import typer

from checkpoint.errors import CheckpointError
from services.config_file import ConfigError
from services.environment import broken_environment

DONE, FAILED, USAGE = 0, 1, 2

_P = ParamSpec("_P")


def command(run: Callable[_P, int]) -> Callable[_P, None]:
    """Makes a function that returns an exit code a command. It must have a parameter ``as_json``."""

    @functools.wraps(run)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            code = run(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            code = _report(error, as_json=bool(kwargs["as_json"]))
        raise typer.Exit(code)

    return guarded


def _report(error: BaseException, *, as_json: bool) -> int:
    message = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or "no message"
    if broken := broken_environment(error):
        message = broken
    elif not isinstance(error, (ValueError, OSError, CheckpointError, KeyboardInterrupt)):  # these speak for themselves
        message = f"{type(error).__name__}: {message}"
    if os.environ.get("PENUMBRA_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
    report_error(message, as_json=as_json)
    return USAGE if isinstance(error, ConfigError) else FAILED


def report_error(message: str, *, as_json: bool) -> None:
    """Prints the block on stderr and, with ``as_json``, the one JSON value on stdout."""
    print(f"penumbra: error: {message}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": message}))
