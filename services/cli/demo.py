"""``penumbra demo``."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from services.cli.errors import DONE, FAILED, command
from services.cli.options import AsJson, Overrides, Quiet, SynthFormat
from services.config import RunConfig
from services.config_file import ConfigError, load_config

_CONFIG = Path(__file__).parents[2] / "configs" / "demo.yaml"
_MAX_TABLE_ROWS = 20_000


@command
def demo(
    overrides: Overrides = None,
    rows: Annotated[int, typer.Option(help="Size of the synthetic click log.", min=1000)] = 1_000_000,
    calm: Annotated[bool, typer.Option("--calm", help="Kill nothing.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Write a synthetic click log and train on it, while one shard process is killed, and later one with its rows.

    The end compares the AUC with that of a perfect model.
    """
    config = load_config(str(_CONFIG), overrides or ())
    folder, data_format = _data(config)

    import json

    from rich.console import Group

    from services.cli.demo_data import DemoData
    from services.cli.demo_faults import demo_faults
    from services.cli.live import LiveProgress
    from services.cli.output import show, stdout_to_stderr
    from services.cli.tables import summary_view
    from services.driver import run
    from services.faults.running import RunningInjector
    from services.progress import Progress

    with stdout_to_stderr(), LiveProgress(sys.stderr, quiet=quiet) as on_progress:
        on_progress(Progress(state="STARTING", stage=f"{rows:,} synthetic rows in {folder}"))
        bayes_auc = DemoData(rows, config.seed, _MAX_TABLE_ROWS, data_format).ensure(folder)
        with contextlib.ExitStack() as stack:
            if not calm:
                plan = demo_faults(int(rows * (1.0 - config.data.eval_fraction)) * config.train.epochs)
                stack.enter_context(RunningInjector(plan, Path(config.storage_path) / config.name))
            summary = run(config, on_progress)
    # The Bayes AUC is that of the last tenth: it says something about this run only if that is what was held out.
    if config.data.eval is not None or config.data.eval_fraction != 0.1:
        bayes_auc = None
    auc = summary.metrics.auc if summary.metrics else None
    result = {**summary.model_dump(mode="json", by_alias=True), "bayes_auc": bayes_auc}
    show(Group(summary_view(summary), compared(auc, bayes_auc)), json.dumps(result), as_json=as_json)
    return DONE if summary.state == "SUCCEEDED" else FAILED


def compared(auc: float | None, bayes_auc: float | None) -> str:
    """The line that ends the demo: how much of what can be known the model learnt."""
    if auc is None or bayes_auc is None:
        return "No AUC to compare."
    learnt = (auc - 0.5) / (bayes_auc - 0.5)
    perfect = f"a perfect model reaches {bayes_auc:.4f} on these rows (Bayes AUC)"
    return f"AUC {auc:.4f}; {perfect}: {learnt:.0%} of the way from 0.5."


def _data(config: RunConfig) -> tuple[Path, SynthFormat]:
    """Where the demo writes its rows, and as what."""
    data = config.data
    if not isinstance(data.train, str) or not (data.format == "criteo_tsv" or data.format == "parquet"):
        raise ConfigError(["the demo writes data.train itself: one directory, data.format criteo_tsv or parquet"])
    return Path(data.train), data.format
