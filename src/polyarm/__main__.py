"""Lets ``python -m polyarm`` do what the ``polyarm`` command does."""

from polyarm.cli.main import main

if __name__ == "__main__":
    main()
