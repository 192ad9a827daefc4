"""``python -m services``, installed as ``penumbra``."""

from __future__ import annotations


def main() -> None:
    """Runs the command line; imports stay inside, because Ray workers import this package too."""
    from services.cli.app import app

    app(prog_name="penumbra")


if __name__ == "__main__":
    main()
