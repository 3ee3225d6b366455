"""``python -m tractable`` is the command ``tractable``."""

from tractable.cli import main

if __name__ == "__main__":
    main()
