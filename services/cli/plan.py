"""``penumbra plan``."""

from __future__ import annotations

from services.cli.errors import DONE, FAILED, command
from services.cli.options import AsJson, ConfigPath, Overrides, load_with_data


@command
def plan(overrides: Overrides = None, config: ConfigPath = None, as_json: AsJson = False) -> int:
    """Print where every embedding table would go, when it would be saved and what that costs; train nothing.

    Exit code 1 when it does not fit.
    """
    loaded = load_with_data(config, overrides)

    from services.cli.output import show, stdout_to_stderr
    from services.cli.tables import placement_view
    from services.driver import plan as plan_placement

    with stdout_to_stderr():
        report = plan_placement(loaded)
    show(placement_view(report), report.model_dump_json(indent=1), as_json=as_json)
    return DONE if report.fits else FAILED
