"""Where the commands write: as wide as the terminal, or wide enough for a file."""

from __future__ import annotations

import logging
import shlex
import sys

from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

_FILE_WIDTH = 160


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to `main`, as with every other print."""
        raise  # noqa: PLE0704


def console(*, stderr: bool) -> Console:
    """A console on stdout or stderr that marks nothing up by guessing."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _FILE_WIDTH
    return _Console(stderr=stderr, width=width, highlight=False, emoji=False)


def table(*headings: str, title: str | None = None) -> Table:
    """A table in the house's look."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for heading in headings:
        made.add_column(heading, overflow="fold")
    return made


def command_to_go_on() -> str:
    """This command line, without what would start over."""
    words = [word for word in sys.argv[1:] if word != "--fresh"]
    return shlex.join(["polyarm", *words])


def log_to(errors: Console, mark: str = "") -> None:
    """Messages go through the console, so that they do not break the live display.

    Args:
        errors: The console.
        mark: Begins each of them.
    """
    log = logging.getLogger("polyarm")
    if not log.handlers:
        handler = RichHandler(console=errors, show_path=False, show_time=False, markup=False)
        handler.setFormatter(_FirstLine(f"{mark}%(message)s"))
        log.addHandler(handler)
        log.propagate = False


class _FirstLine(logging.Formatter):
    """The first line of a message; stacks are in the journal."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).partition("\n")[0]
