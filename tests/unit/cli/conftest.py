"""What the tests of command lines share."""

from __future__ import annotations

import pytest

from polyarm.cli.main import main


@pytest.fixture
def parsed(monkeypatch):
    """Parses a command line; gives the options that its command would run with."""
    seen = []
    for command in ("bench", "debug", "train"):
        monkeypatch.setattr(f"polyarm.cli.{command}.run", lambda options: seen.append(options) or 0)

    def parse(*arguments):
        with pytest.raises(SystemExit) as leaving:
            main(arguments)
        assert leaving.value.code == 0
        return seen.pop()

    return parse
