"""``penumbra train``."""

from __future__ import annotations

import sys

from services.cli.errors import DONE, FAILED, command
from services.cli.options import AsJson, ConfigPath, Overrides, Quiet, Unlabeled, load_with_data, with_unlabeled


@command
def train(
    overrides: Overrides = None,
    config: ConfigPath = None,
    unlabeled: Unlabeled = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Train a model. Exit code 0 when the run succeeded, 1 when it failed or was cancelled, 2 for wrong settings."""
    loaded = load_with_data(config, with_unlabeled(overrides, unlabeled))

    from services.cli.live import LiveProgress
    from services.cli.output import show, stdout_to_stderr
    from services.cli.tables import summary_view
    from services.driver import run

    with stdout_to_stderr(), LiveProgress(sys.stderr, quiet=quiet) as on_progress:
        summary = run(loaded, on_progress)
    show(summary_view(summary), summary.to_json(), as_json=as_json)
    return DONE if summary.state == "SUCCEEDED" else FAILED
