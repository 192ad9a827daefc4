"""``python -m services.faults PLAN RUN_DIR``: run a plan of faults against a run, as a process of its own."""

from __future__ import annotations

import argparse
import signal
import sys

from services.faults.injector import Injector, InjectorError
from services.faults.plan_file import PlanError, load_plan


def main(arguments: list[str] | None = None) -> int:
    """Prints what became of the plan.

    Returns:
        0: every fault was injected; 1: some were not; 2: wrong usage, or no such run.
    """
    parser = argparse.ArgumentParser(prog="python -m services.faults", description="Inject faults into a living run.")
    parser.add_argument("plan", help="YAML file, see docs/faults.md")
    parser.add_argument("run_dir", help="the run's directory; it may not be there yet")
    parser.add_argument("--wait-s", type=float, default=120.0, help="how long to wait for the run (default 120)")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    options = parser.parse_args(arguments)
    try:
        injector = Injector(load_plan(options.plan), options.run_dir, wait_s=options.wait_s)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: injector.stop())
        report = injector.run()
    except (PlanError, InjectorError) as error:
        print(error, file=sys.stderr)
        return 2
    print(report.model_dump_json() if options.json else report)
    return 1 if report.not_injected else 0


if __name__ == "__main__":
    sys.exit(main())
