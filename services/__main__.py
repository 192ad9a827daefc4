"""``python -m services``, installed as ``penumbra``."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line; imports stay inside, because Ray workers import this package too."""
    from services.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
