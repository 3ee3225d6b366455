"""The command line. ``tractable --help`` says what it does."""

import sys


def main() -> None:
    """The program ``tractable``."""
    from tractable.cli.app import app

    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
